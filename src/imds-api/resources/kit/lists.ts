/**
 * The GET of a collection. A collection declares its form, its order, its filters and which rows it has; pages,
 * filters, and streaming are the same for all (http/paging.ts, http/list-stream.ts).
 */
import type { FastifyRequest } from 'fastify'
import { sql, type RawBuilder } from 'kysely'
import Type, { type TObject, type TSchema } from 'typebox'
import { accountOf } from '../../auth/caller.ts'
import { sendList } from '../../http/list-stream.ts'
import { MAX_CURSOR_LENGTH, MAX_PAGE_SIZE, parseListQuery, TAG } from '../../http/paging.ts'
import type { FilterRule, ListRules, ListPosition } from '../../http/paging.ts'
import { MAX_VALUE_LENGTH } from '../../http/query.ts'
import type { Form, FormRow, RowsOf } from './forms.ts'
import type { ResourceParts } from './parts.ts'

/** A column of the order of a list, with its table. The last one is unique. */
interface OrderColumn {
  readonly column: string
  readonly type: 'text' | 'integer' | 'time'
}
interface Filter extends FilterRule {
  readonly where: (value: string) => RawBuilder<boolean>
}
export type Tag = readonly [key: string, value: string]

/**
 * A collection. `form`: the collected one. `order`: default, the oldest resource first. `filters`: extra ones.
 * `name` and `status` are filters if the form has them. `rows`: those that the request may see. `rowsAtOnce`: of a query.
 */
export interface Collection {
  readonly summary?: string
  readonly description: string
  readonly form: Form
  readonly order?: readonly OrderColumn[]
  readonly filters?: Readonly<Record<string, Filter>>
  readonly tagged?: (accountId: string, tags: readonly Tag[]) => RawBuilder<boolean>
  readonly rowsAtOnce?: number
  readonly rows: (request: FastifyRequest) => RowsOf
}

/** Rows of a query. PostgreSQL makes them all before it counts their bytes. */
const ROWS_AT_ONCE = 100
/** Those of a form with a list that may have 1,000 resources in each row. */
export const FEW_ROWS_AT_ONCE = 20

export function byText(column: string): OrderColumn {
  return { column, type: 'text' }
}
export function byInteger(column: string): OrderColumn {
  return { column, type: 'integer' }
}
export function equals(column: string, rule: FilterRule = {}): Filter {
  return { ...rule, where: (value) => sql`${sql.ref(column)} = ${value}` }
}

function byCreation(table: string): readonly OrderColumn[] {
  return [{ column: `${table}.created_at`, type: 'time' }, byText(`${table}.id`)]
}

function filtersOf({ fields, resource: { table, states } }: Form): Readonly<Record<string, Filter>> {
  return {
    ...('name' in fields && { name: equals(`${table}.name`) }),
    ...(states !== undefined && { status: equals(`${table}.status`, { values: states }) }),
  }
}

export function addList({ server, db, site }: ResourceParts, collection: Collection): void {
  const { form, description, tagged, rowsAtOnce = ROWS_AT_ONCE, rows: rowsOf } = collection
  const { resource } = form
  const { summary = `List ${resource.plural}`, order = byCreation(resource.table) } = collection
  const path = `/${resource.path}`
  const filters: Readonly<Record<string, Filter>> = { ...filtersOf(form), ...collection.filters }
  const rules: ListRules = {
    path,
    order: order.map(({ type }) => (type === 'text' ? 'string' : 'number')),
    filters,
    hasTags: tagged !== undefined,
  }
  const columns = sql`, json_build_array(${sql.join(order.map(inPosition))}) as position`
  const orderBy = sql`order by ${sql.join(order.map(({ column }) => sql.ref(column)))}`
  server.get(
    path,
    {
      schema: {
        operationId: `list${resource.name}s`,
        summary,
        description,
        tags: resource.tags,
        querystring: parametersOf(rules),
        response: { 200: Type.Array(form.schema) },
        'x-headers': ['Link'],
      },
      validatorCompiler: () => () => true, // parseListQuery checks them: in a query, numbers are text
    },
    async (request, reply) => {
      const query = parseListQuery(request.query, rules)
      const { where, ...others } = rowsOf(request)
      const isTag = ([name]: Tag) => name.startsWith(TAG)
      const conditions = [
        where,
        ...query.filters.filter((one) => !isTag(one)).map(([name, value]) => filters[name]!.where(value)),
      ]
      const tags = query.filters.filter(isTag).map(([name, value]) => [name.slice(TAG.length), value] as const)
      if (tags.length > 0) conditions.push(tagged!(accountOf(request), tags))
      return sendList(reply, query, rowsAtOnce, async (after, most, mostBytes) => {
        const all = after === undefined ? conditions : [...conditions, isAfter(order, after)]
        const which = { ...others, where: sql.join(all, sql` and `) }
        const found = form.query(db, which, { columns, rest: sql`${orderBy} limit ${most + 1}` })
        const rows = (await firstOf(found, mostBytes).execute(db)).rows.slice(0, most)
        const forms = rows.map((row) => form.show(site, row))
        const last = rows.at(-1)
        return {
          json: (reply.serializeInput(forms as never, '200') as string).slice(1, -1),
          rows: rows.length,
          next: last?.is_last === false ? last.position : undefined,
        }
      })
    },
  )
}

/** `is_last`: no row follows in the query. */
type ListRow = FormRow & { readonly position: ListPosition; readonly is_last: boolean }

/** The first rows of a query, until they have so many bytes: PostgreSQL sends no more. */
function firstOf(rows: RawBuilder<unknown>, bytes: number): RawBuilder<ListRow> {
  return sql`
    select * from (
      select page.*, lead(false, 1, true) over one_by_one as is_last,
        sum(pg_column_size(page)) over one_by_one - pg_column_size(page) as bytes_before
      from (${rows}) as page window one_by_one as (rows unbounded preceding)
    ) as measured where bytes_before < ${bytes}`
}

/** The parameters of a list, for its document. */
function parametersOf({ filters, hasTags }: ListRules): TObject {
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
  return Type.Object(parameters)
}

/** The value of a column in a position. A time is in microseconds since 1970, which JSON keeps exactly. */
function inPosition({ column, type }: OrderColumn): RawBuilder<unknown> {
  return type === 'time' ? sql`(extract(epoch from ${sql.ref(column)}) * 1000000)::bigint` : sql.ref(column)
}

/** True for the rows behind a position. An index with the columns of the order finds them. */
function isAfter(order: readonly OrderColumn[], position: ListPosition): RawBuilder<boolean> {
  const columns = order.map(({ column }) => sql.ref(column))
  const values = order.map(({ type }, i) =>
    type === 'time'
      ? sql`timestamptz 'epoch' + ${position[i]}::bigint * interval '1 microsecond'`
      : sql`${position[i]}::${sql.raw(type === 'text' ? 'text' : 'bigint')}`,
  )
  return sql`(${sql.join(columns)}) > (${sql.join(values)})`
}

export function pick(from: object, names: readonly string[]): object {
  return Object.fromEntries(
    names.flatMap((name) => (Object.hasOwn(from, name) ? [[name, from[name as keyof typeof from]]] : [])),
  )
}

/** The id in the path of a request; '': there is none. */
export function idOf({ params }: FastifyRequest): string {
  return (params as { readonly id?: string }).id ?? ''
}
