/**
 * The value of the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a string of RFC 9651 such as
 * `"8e03978e"`, or the same without quotes, as most clients send it.
 */

/** What the header may be, in words. */
export const KEY_RULE =
  '1 to 255 printable characters of ASCII, in double quotes unless all are of [A-Za-z0-9._~:/+=@-]'

const QUOTED = /^"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])+)"$/
const BARE = /^[A-Za-z0-9._~:/+=@-]+$/
const MAX_LENGTH = 255

/** Parses the header. The quoted and the bare form of a text are one key. Undefined: it is malformed. */
export function parseIdempotencyKey(header: string): string | undefined {
  const key = BARE.test(header) ? header : QUOTED.exec(header)?.[1]?.replaceAll(/\\(.)/g, '$1')
  return key !== undefined && key.length <= MAX_LENGTH ? key : undefined
}
