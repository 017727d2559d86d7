/** Interfaces that nft refuses. The firewall agent leaves them out, and reports them to the daemon with each request. */

/** An interface of an instance, and nft's message. */
export interface FirewallRefusal { readonly instance: string, readonly interface: string, readonly message: string }

/** The most interfaces that are left out. If nft refuses more, the fault is not in the interfaces. */
export const MOST_REFUSED = 16
/** The most characters of a message. Refusals are part of a URL, which the daemon's server reads up to 16 KiB. */
const MOST_CHARACTERS = 160

/** Formats refusals for the query of a request. */
export function formatRefusals(refusals: readonly FirewallRefusal[]): string {
  return JSON.stringify(refusals.map(({ instance, interface: id, message }) => [instance, id, message.slice(0, MOST_CHARACTERS)]))
}

/** Parses the refusals of a query. An invalid text gives none. */
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
