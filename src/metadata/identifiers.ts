/** The patterns of ids, names and lines, for the schema, the stores, the configuration, the API and the CLI. */

/** The network of an interface or a listener that does not name one. */
export const DEFAULT_NETWORK = 'default'

/** The pattern of every id: safe in Redis keys, paths, file names and nftables rules. */
export const ID = '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'
/** The pattern of an id in words. */
export const ID_RULE = 'an id: 1 to 64 letters, digits, ".", "_" or "-", beginning with a letter or digit'

const idForm = new RegExp(ID)

/** The pattern of a name: of a region, a hypervisor, a network, a handle. */
export const NAME = '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'

const nameForm = new RegExp(NAME)

export function isName(text: string): boolean {
  return nameForm.test(text)
}

export function isId(value: unknown): value is string {
  return typeof value === 'string' && idForm.test(value)
}

/**
 * A character of a text on one line, for patterns with the flag u. cloud-init's parser of YAML rejects control
 * characters, U+FFFE and U+FFFF, its parser of listings ends a line at U+2028 and U+2029, and half of a surrogate pair
 * is no character.
 */
export const LINE_CHARACTER = '[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufffe\\uffff]'
/** What LINE_CHARACTER requires, in words. */
export const LINE_RULE = 'one line without control characters'
/** The pattern of a text of any characters. */
export const WELL_FORMED = '^[^\\ud800-\\udfff]*$'

const lineForm = new RegExp(`^${LINE_CHARACTER}*$`, 'u')

export function isLine(text: string): boolean {
  return lineForm.test(text)
}

/** The pattern of an audience of an identity token: visible characters of ASCII, as in a URL or a name. */
export const AUDIENCE = '^[\\x21-\\x7e]{1,255}$'
