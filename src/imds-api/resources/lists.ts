/**
 * The GET of a collection. A collection declares its form, its order, its filters and the query of its rows; pages,
 * filters, `fields` and streaming are the same for all (http/paging.ts, http/list-stream.ts).
 */
import type { FastifyRequest } from 'fastify'
import { sql, type RawBuilder, type SelectQueryBuilder } from 'kysely'
import Type, { type Static, type TObject, type TSchema } from 'typebox'
import type {} from '../auth/account-choice.ts' // the caller of a request
import type { Tables } from '../database/tables.ts'
import { sendList } from '../http/list-stream.ts'
import { MAX_CURSOR_LENGTH, MAX_PAGE_SIZE, parseListQuery, TAG, TAG_PATTERN, MAX_VALUE_LENGTH } from '../http/paging.ts'
import type { FilterRule, ListRules, ListPosition } from '../http/paging.ts'
import type { ApiServer } from '../http/server.ts'
import type { Resource } from './table.ts'

/** A column of the order of a list, with its table. The last one is unique. */
export interface OrderColumn {
  readonly column: string
  readonly type: 'text' | 'integer' | 'time'
}
interface Filter extends FilterRule {
  readonly where: (value: string) => RawBuilder<boolean>
}
/** The key and the value of a tag. */
export type Tag = readonly [key: string, value: string]

/**
 * A collection. `order`: default, the oldest resource first. `select`: the query of the rows that the request may see,
 * without an order. `represent`: their
 * collected forms. `rowsAtOnce`: how many rows a query loads; fewer if a form has other lists in it.
 */
export interface Collection<Form extends TObject, Table extends keyof Tables, Row> {
  readonly summary?: string
  readonly description: string
  readonly form: Form
  readonly order?: readonly OrderColumn[]
  readonly filters: Readonly<Record<string, Filter>>
  readonly tagged?: (accountId: string, tags: readonly Tag[]) => RawBuilder<boolean>
  readonly rowsAtOnce?: number
  readonly select: (request: FastifyRequest) => SelectQueryBuilder<Tables, Table, Row>
  readonly represent: (rows: readonly Row[]) => readonly Static<Form>[] | Promise<readonly Static<Form>[]>
}

const ROWS_AT_ONCE = 100
/** For forms with lists of other resources in them, which may be long. */
export const FEW_ROWS_AT_ONCE = 10

/** A column of an order. */
export function byText(column: string): OrderColumn {
  return { column, type: 'text' }
}
/** A column of an order. */
export function byInteger(column: string): OrderColumn {
  return { column, type: 'integer' }
}
/** A filter by the value of a column. */
export function equals(column: string, rule: FilterRule = {}): Filter {
  return { ...rule, where: (value) => sql`${sql.ref(column)} = ${value}` }
}

function byCreation(table: keyof Tables): readonly OrderColumn[] {
  return [{ column: `${table}.created_at`, type: 'time' }, byText(`${table}.id`)]
}

/** Adds the route of a collection. */
export function addList<Form extends TObject, Table extends keyof Tables, Row>(
  server: ApiServer,
  { path: collectionPath, table, tags: sections, plural, name: singular }: Resource,
  collection: Collection<Form, Table, Row>,
): void {
  const { summary = `List ${plural}`, description, form, filters, tagged } = collection
  const { order = byCreation(table), rowsAtOnce = ROWS_AT_ONCE, select, represent } = collection
  const path = `/${collectionPath}`
  const names = Object.keys(form.properties)
  const rules: ListRules = {
    path,
    order: order.map(({ type }) => (type === 'text' ? 'string' : 'number')),
    filters,
    hasTags: tagged !== undefined,
    fields: names,
  }
  const place = sql<ListPosition>`json_build_array(${sql.join(order.map(valueOf))})`
  server.get(
    path,
    {
      schema: {
        operationId: `list${singular}s`,
        summary,
        description,
        tags: sections,
        querystring: parametersOf(rules),
        response: { 200: Type.Array(form) },
        'x-headers': ['Link'],
      },
      validatorCompiler: () => () => true, // parseListQuery checks them: in a query, numbers are text
    },
    async (request, reply) => {
      const query = parseListQuery(request.query, rules)
      const shown = query.fields && names.filter((name) => query.fields!.has(name))
      let rows = select(request).select(place.as('place'))
      const isTag = ([name]: Tag) => name.startsWith(TAG)
      for (const [name, value] of query.filters.filter((one) => !isTag(one)))
        rows = rows.where(filters[name]!.where(value))
      const tags = query.filters.filter(isTag).map(([name, value]) => [name.slice(TAG.length), value] as const)
      if (tags.length > 0) rows = rows.where(tagged!(request.caller.accountId, tags))
      for (const { column } of order) rows = rows.orderBy(sql.ref(column))
      return sendList(reply, query, rowsAtOnce, async (after, most) => {
        const from = after === undefined ? rows : rows.where(isAfter(order, after))
        const found = await from.limit(most + 1).execute()
        const page = found.slice(0, most)
        const forms = await represent(page)
        return {
          json:
            shown === undefined
              ? (reply.serializeInput(forms as never, '200') as string).slice(1, -1)
              : forms.map((one) => JSON.stringify(pick(one, shown))).join(','),
          rows: page.length,
          next: found.length > most ? (page.at(-1) as { readonly place: ListPosition }).place : undefined,
        }
      })
    },
  )
}

/** The parameters of a list, for its document and for strict.ts. */
function parametersOf({ filters, hasTags, fields }: ListRules): TObject {
  const text = (description: string, maxLength = MAX_VALUE_LENGTH) =>
    Type.Optional(Type.String({ maxLength, description }))
  const parameters: Record<string, TSchema> = {
    limit: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: MAX_PAGE_SIZE,
        description: 'An extension. A page of at most this many. The header Link has the next one.',
      }),
    ),
    after: text('An extension. The page after this cursor, which comes from a Link.', MAX_CURSOR_LENGTH),
    fields: text(
      `An extension. Only these fields, separated by commas; then the others are absent: ${fields.join(', ')}.`,
    ),
  }
  for (const [name, { values }] of Object.entries(filters)) {
    const description = `An extension. Only those with this ${name.replace('_', ' ')}.`
    parameters[name] = values === undefined ? text(description) : Type.Optional(Type.Enum([...values], { description }))
  }
  if (hasTags)
    parameters['tags'] = Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description: 'An extension. Only those with these tags: tags[Role]=front. tag.Role=front is the same.',
        examples: [{ Role: 'front' }],
      }),
    )
  return Type.Object(parameters, {
    additionalProperties: false,
    ...(hasTags && { patternProperties: { [TAG_PATTERN]: {} } }),
  })
}

/** The value of a column in a place. A time is in microseconds since 1970, which JSON keeps exactly. */
function valueOf({ column, type }: OrderColumn): RawBuilder<unknown> {
  return type === 'time' ? sql`(extract(epoch from ${sql.ref(column)}) * 1000000)::bigint` : sql.ref(column)
}

/** True for the rows behind a place. An index with the columns of the order finds them. */
function isAfter(order: readonly OrderColumn[], place: ListPosition): RawBuilder<boolean> {
  const columns = order.map(({ column }) => sql.ref(column))
  const values = order.map(({ type }, i) =>
    type === 'time'
      ? sql`timestamptz 'epoch' + ${place[i]}::bigint * interval '1 microsecond'`
      : sql`${place[i]}::${sql.raw(type === 'text' ? 'text' : 'bigint')}`,
  )
  return sql`(${sql.join(columns)}) > (${sql.join(values)})`
}

function pick(form: object, names: readonly string[]): object {
  return Object.fromEntries(names.map((name) => [name, form[name as keyof typeof form]]))
}
