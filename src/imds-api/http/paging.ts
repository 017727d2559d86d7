/**
 * The query parameters of lists: pages (`limit`, `after`) and filters.
 *
 * A cursor, the value of `after`, is the position of a row in the order of its list. The next page has the rows behind
 * this position, so rows that are created or deleted between two pages move no other row to another page. A cursor is no
 * secret and gives no access: it only narrows the rows that the caller may see.
 */
import { hash } from 'node:crypto'
import { formatId, isIdOf } from '../model/ids.ts'
import type { Prefix } from '../model/resources.ts'
import { STORABLE_KEYWORD } from '../model/storable-text.ts'
import { parseJson } from '../../runtime/json.ts'
import { QueryReader } from './query.ts'

/** The values of the columns by which a list is ordered. Integers are safe ones. */
export type ListPosition = readonly (string | number)[]

/** The values of a filter: one of these, the id of one of these, or any text. */
export interface FilterRule {
  readonly values?: readonly string[]
  readonly idOf?: Prefix
}

/** What the parameters of a list may be. `order`: the types of a position. `hasTags`: whether it has filters by tags. */
export interface ListRules {
  readonly path: string
  readonly order: readonly ('string' | 'number')[]
  readonly filters: Readonly<Record<string, FilterRule>>
  readonly hasTags: boolean
}

/** The parameters of a list. `filters`: names, with `tag.` before the key of a tag, and values. */
export interface ListQuery {
  readonly limit: number | undefined
  readonly after: ListPosition | undefined
  readonly filters: readonly (readonly [name: string, value: string])[]
  /** The header `Link` of a page: a reference to the page after a position, with the same parameters. */
  linkTo(position: ListPosition): string
}

export const MAX_PAGE_SIZE = 1_000
export const MAX_FILTERS = 10
/** The longest cursor. One has at most a name of 255 characters and an id. */
export const MAX_CURSOR_LENGTH = 4_096
/** Before the key of a tag. */
export const TAG = 'tag.'
/** The names of filters by tags: generators of clients make `tags[KEY]` of an object (deepObject of OpenAPI). */
const TAG_PATTERN = '^(?:tag\\.(?<dotted>.*)|tags\\[(?<bracketed>.*)\\])$'
/** The characters of the digest in a cursor. They find mistakes: a cursor gives no access. */
const DIGEST_LENGTH = 8

type Query = Readonly<Record<string, unknown>>

/** Reads the parameters of a list. Refuses with all faults at once (400). Unknown ones are ignored. */
export function parseListQuery(query: Query, rules: ListRules): ListQuery {
  const reader = new QueryReader(query)
  const filterOf = (name: string) => {
    const text = reader.text(name) ?? ''
    const { values, idOf } = rules.filters[name] ?? {}
    if (values?.includes(text) === false) reader.fault(name, 'not_allowed', `must be one of ${values.join(', ')}`)
    if (idOf !== undefined && !isIdOf(idOf, text))
      reader.fault(name, 'malformed', `must be an id such as ${formatId(idOf, 1)}`)
    return text
  }
  const limit = reader.integer('limit', MAX_PAGE_SIZE)
  const names = filterNames(query, rules)
  const tooMany = names[MAX_FILTERS]
  if (tooMany !== undefined)
    reader.fault(tooMany, 'too_long', `is one filter too many: at most ${MAX_FILTERS} are allowed`)
  const filters = names.slice(0, MAX_FILTERS).map((name) => [tagOf(name) ?? name, filterOf(name)] as const)
  for (const [i, [name]] of filters.entries()) {
    if (name === TAG) reader.fault(names[i]!, 'malformed', 'must have the key of a tag, such as tag.Role')
    if (filters.findIndex(([other]) => other === name) < i)
      reader.fault(names[i]!, 'malformed', `is ${name}, given twice`)
  }
  const digest = digestOf(rules.path, filters)
  const cursor = reader.text('after', MAX_CURSOR_LENGTH)
  const after = cursor === undefined ? undefined : parseCursor(cursor, digest, rules.order)
  if (cursor !== undefined && after === undefined)
    reader.fault('after', 'malformed', 'must be the cursor of a Link of this list, with the same filters')
  reader.end()
  const linkTo = (position: ListPosition) => {
    const kept = ['account_id', 'limit', ...names].filter((name) => query[name] !== undefined)
    const parameters = new URLSearchParams(kept.map((name) => [name, String(query[name])]))
    parameters.set('after', Buffer.from(JSON.stringify([digest, ...position])).toString('base64url'))
    return `<?${parameters.toString()}>; rel="next"` // without a host: a client can send any Host
  }
  return { limit, after, filters, linkTo }
}

/** The names of the filters in a query, as they are given. */
function filterNames(query: Query, { filters, hasTags }: ListRules): string[] {
  const tags = hasTags ? Object.keys(query).filter((name) => tagOf(name) !== undefined) : []
  return [...Object.keys(filters).filter((name) => query[name] !== undefined), ...tags]
}

/** The filter by a tag of either form, as `tag.KEY`. */
function tagOf(name: string): string | undefined {
  const { dotted, bracketed } = new RegExp(TAG_PATTERN, 's').exec(name)?.groups ?? {}
  const key = dotted ?? bracketed
  return key === undefined ? undefined : TAG + key
}

/** Differs for other lists, and for other filters. */
function digestOf(path: string, filters: ListQuery['filters']): string {
  const sorted = [...filters].sort(([a], [b]) => (a < b ? -1 : 1))
  return hash('sha256', JSON.stringify([path, sorted]), 'base64url').slice(0, DIGEST_LENGTH)
}

/** Undefined: it is no cursor of this list with these filters. */
function parseCursor(text: string, digest: string, order: ListRules['order']): ListPosition | undefined {
  const parsed = parseJson(Buffer.from(text, 'base64url').toString())
  if (!Array.isArray(parsed) || parsed.length !== order.length + 1 || parsed[0] !== digest) return undefined
  const position = parsed.slice(1) as ListPosition
  const isPosition = position.every(
    (value, i) =>
      typeof value === order[i] &&
      (typeof value === 'number' ? Number.isSafeInteger(value) : STORABLE_KEYWORD.validate(true, value)),
  )
  return isPosition ? position : undefined
}
