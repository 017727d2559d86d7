/** Why a file of the view is not served. */

/** It never can be. */
export class RejectedFile extends Error {}
/** Not by this start. With another configuration or clock it may be the last good state. */
export class Mismatch extends Error {}
/** None of the configured keys decrypts it: the key is wrong, or the file was changed. */
export class Undecryptable extends Mismatch {}
/** A plain snapshot although there are record keys. It may be forged, and it may have user-data. */
export class PlainSnapshot extends Mismatch {}

/** The rejection of a file with a wrong form or digest. */
export function torn(): RejectedFile {
  return new RejectedFile('it is torn or was changed')
}
