/** Why a journal is not served. */

/** It never can be. */
export class RejectedJournal extends Error {}
/** Not by this start. With another configuration or clock it may be the last good state. */
export class Mismatch extends Error {}

/** The rejection of a journal with another form. */
export function malformed(): RejectedJournal {
  return new RejectedJournal('it was changed, or written by another version')
}
