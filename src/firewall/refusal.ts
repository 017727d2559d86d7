/**
 * Interfaces that nft refuses. The process that applies the rules leaves them out, and tells the daemon with each of its questions.
 */

/** An interface of an instance, and nft's words. */
export interface FirewallRefusal { readonly instance: string, readonly interface: string, readonly message: string }

/** So many are left out at most: where nft refuses more, the fault is not in the interfaces. */
export const MOST_REFUSED = 16
/** They are part of a URL, which the daemon's server reads up to 16 KiB. */
const MOST_CHARACTERS = 160

/** The refusals as a word of a query. */
export function formatRefusals(refusals: readonly FirewallRefusal[]): string {
  return JSON.stringify(refusals.map(({ instance, interface: id, message }) => [instance, id, message.slice(0, MOST_CHARACTERS)]))
}

/** The refusals that a query tells; none where it is not understood. */
export function parseRefusals(text: string | undefined): FirewallRefusal[] {
  let rows: unknown
  try {
    rows = JSON.parse(text ?? '[]')
  } catch {
    return []
  }
  if (!Array.isArray(rows) || rows.length > MOST_REFUSED) return []
  return rows.filter(isRow).map(([instance, id, message]) => ({ instance, interface: id, message }))
}

function isRow(row: unknown): row is [string, string, string] {
  return Array.isArray(row) && row.length === 3 && row.every((word) => typeof word === 'string' && word.length <= MOST_CHARACTERS)
}
