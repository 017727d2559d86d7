/** What the routes of a resource follow from: its row in model/resources.ts, with its words and its SQL. */
import { sql } from 'kysely'
import Type from 'typebox'
import type { Tables } from '../../database/tables.ts'
import { formatId } from '../../model/ids.ts'
import { ALL_ROWS, ROWS, withArticle, type NamedRow } from '../../model/resources.ts'

/**
 * `type`: the `resource_type`. `tags`: its section of the document. `noun`: its kind with an article. `plural`: its kind in
 * the plural. `name`: in the ids of operations and the titles of schemas. `params`: of the path of a member. `isPresent`:
 * true for the rows that lists show.
 */
export type Resource = ReturnType<typeof resourceOf>
/** Those that have a table. */
type Implemented = {
  [Name in keyof typeof ROWS]: (typeof ROWS)[Name] extends { readonly table: keyof Tables } ? Name : never
}[keyof typeof ROWS]

const collaboration = ALL_ROWS.find(({ name }) => name === 'collaboration')!

export type ResourceName = Implemented | 'userCollaboration'
export const RESOURCES: Readonly<Record<ResourceName, Resource>> = {
  ...(Object.fromEntries(
    ALL_ROWS.filter(({ table }) => table !== undefined).map((row) => [row.name, resourceOf(row)]),
  ) as Readonly<Record<Implemented, Resource>>),
  /** The side of the user who is invited. */
  userCollaboration: resourceOf({ ...collaboration, path: 'user/collaborations' }),
}

function resourceOf({ prefix, kind, type, plural, tag, table, path = table, ...row }: NamedRow) {
  const { hasHandle = false, states, givesIds, present = 'true' } = row
  const { example = givesIds === true ? formatId(prefix, 1) : `${prefix}-demo1` } = row
  const description = hasHandle ? 'The id, or the handle.' : 'The id.'
  return {
    ...{ kind, type, plural, path: path!, hasHandle, states },
    table: table as keyof Tables,
    tags: [tag],
    noun: withArticle(kind),
    name: path!.replaceAll(/(?:^|[/_])(.)/g, (_, first: string) => first.toUpperCase()).slice(0, -1),
    params: Type.Object({ id: Type.String({ description, examples: [example] }) }),
    isPresent: sql.raw<boolean>(present),
  }
}
