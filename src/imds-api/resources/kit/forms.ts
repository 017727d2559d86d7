/**
 * A form of a resource: full, collected or nested. It is declared once, as a list of fields. The schema, the columns
 * that a query selects, and the representation of a row follow from it.
 */
import { sql, type RawBuilder } from 'kysely'
import Type, { type TObject, type TSchema } from 'typebox'
import { runPrepared } from '../../database/prepared.ts'
import type { Db } from '../../database/transaction.ts'
import { MAX_PAGE_SIZE } from '../../http/paging.ts'
import { noSuch } from '../../model/refusal.ts'
import { formatOptionalTime, formatTime } from '../../model/time.ts'
import { nullable, NullableTime, Time } from './schemas.ts'
import { RESOURCES, type Resource, type ResourceName } from './table.ts'

/** What a query selects for a form, or its JSON, in which a time is text. */
export type FormRow = Readonly<Record<string, unknown>> & { readonly id: string }
/** A resource as responses show it. */
export type Representation = Readonly<Record<string, unknown>> & { readonly id: string }

/** The site of the API. `baseUrl`: without a final slash. */
export interface Site {
  readonly baseUrl: string
}
type Show = (value: never, site: Site, row: FormRow) => unknown

/** A link to other resources. `which`: those of a row, the conditions of a query after its table. */
export interface Link {
  readonly form: Form
  readonly which: RawBuilder<unknown>
}

/**
 * A field whose value is not just the column of its name. `column`: a column of the table, one of the extra columns of
 * the form, or an expression. `show`: makes the value; undefined: the field is left out. `link`: to what it shows.
 */
export class Field {
  readonly schema: TSchema
  readonly column: string | RawBuilder<unknown>
  readonly show: Show | undefined
  readonly link: Link | undefined

  constructor(schema: TSchema, column: string | RawBuilder<unknown>, show?: Show, link?: Link) {
    this.schema = schema
    this.column = column
    this.show = show
    this.link = link
  }
}
/** The most resources of a list inside of a form. */
export const MAX_NESTED = MAX_PAGE_SIZE

/** A list of linked resources. If it is cut, a field beside it has the URL of a list with all of them. */
class LinkedList extends Field {
  readonly #url: Show

  /** `url`: of rows that are cut. */
  constructor(schema: TSchema, column: RawBuilder<unknown>, show: Show, link: Link, url: Show) {
    super(schema, column, show, link)
    this.#url = url
  }

  urlField(name: string): Field {
    const description = `An extension, if ${name} is cut after ${MAX_NESTED}: a list with all of them.`
    return new Field(Type.Optional(Type.String({ format: 'uri', description })), name, this.#url)
  }
}

/** By name. A schema alone: the column of that name. */
export type Fields = Readonly<Record<string, TSchema | Field>>

/**
 * `title`: of the schema; default: the name of the resource. `extra`: columns that fields may use. Those of no field
 * are not selected.
 */
interface FormOptions {
  readonly title?: string
  readonly extra?: Readonly<Record<string, RawBuilder<unknown>>>
}

/** Which rows. `join`: other tables that the conditions need. */
export interface RowsOf {
  readonly join?: RawBuilder<unknown>
  readonly where: RawBuilder<unknown>
}

export class Form {
  readonly resource: Resource
  readonly fields: Fields
  readonly schema: TObject
  readonly links: readonly Link[]
  readonly #columns: RawBuilder<unknown>
  readonly #entries: readonly (readonly [name: string, column: string, show: Show | undefined])[]
  #compiled: RawBuilder<unknown> | undefined

  constructor(resourceName: ResourceName, fields: Fields, { title, extra = {} }: FormOptions = {}) {
    const resource = RESOURCES[resourceName]
    const { type, table, name } = resource
    const entries = Object.entries(fields).flatMap(([name, one]) => {
      const field = one instanceof Field ? one : new Field(one, name, timeFormatOf(one))
      const isList = field instanceof LinkedList
      return [[name, field] as const, ...(isList ? [[`${name}_url`, field.urlField(name)] as const] : [])]
    })
    const expressions = new Map(Object.entries(extra))
    for (const [name, { column }] of entries) if (typeof column !== 'string') expressions.set(name, column)
    this.resource = resource
    this.fields = fields
    this.links = entries.flatMap(([, { link }]) => link ?? [])
    this.#entries = entries.map(([name, { column, show }]) => [name, typeof column === 'string' ? column : name, show])
    const used = new Set(['id', ...this.#entries.map(([, column]) => column)])
    this.#columns = sql.join([
      ...[...used].filter((column) => !expressions.has(column)).map((column) => sql.ref(`${table}.${column}`)),
      ...[...expressions].filter(([name]) => used.has(name)).map(([name, one]) => sql`${one} as ${sql.ref(name)}`),
    ])
    this.schema = Type.Object(
      {
        id: Type.String(),
        resource_type: Type.Literal(type),
        url: Type.String({ format: 'uri' }),
        ...Object.fromEntries(entries.map(([name, { schema }]) => [name, schema])),
      },
      { title: title ?? name },
    )
  }

  show(site: Site, row: FormRow): Representation {
    const { type, path } = this.resource
    const member: Record<string, unknown> & { id: string } = {
      ...{ id: row.id, resource_type: type, url: `${site.baseUrl}/1.0/${path}/${row.id}` },
    }
    for (const [name, column, show] of this.#entries)
      member[name] = show === undefined ? row[column] : show(row[column] as never, site, row)
    return member
  }

  /** A query of rows. `columns`: further ones. */
  query<Row = FormRow>(
    db: Db,
    { join = sql``, where }: RowsOf,
    {
      columns = sql``,
      rest = sql``,
    }: { readonly columns?: RawBuilder<unknown>; readonly rest?: RawBuilder<unknown> } = {},
  ): RawBuilder<Row> {
    // the columns are compiled once, because there are many
    this.#compiled ??= sql.raw(this.#columns.compile(db).sql)
    return sql`select ${this.#compiled}${columns} from ${sql.table(this.resource.table)} ${join} where ${where} ${rest}`
  }

  /** Loads a member by its id or handle. Refuses if it is not among the rows. */
  async load(db: Db, site: Site, id: string, { join, where }: RowsOf): Promise<Representation> {
    const query = this.query(db, { ...(join && { join }), where: sql`${where} and ${this.isNamed(id)}` })
    return this.represent(site, id, (await runPrepared(db, query))[0])
  }

  /** Represents a member that was asked for by its id or handle. Refuses if there is none. */
  represent(site: Site, id: string, row: FormRow | undefined): Representation {
    if (row === undefined) throw noSuch(this.resource.kind, id)
    return this.show(site, row)
  }

  /** True for the row with an id or handle. */
  isNamed(id: string): RawBuilder<boolean> {
    const { table, hasHandle } = this.resource
    const hasId = sql<boolean>`${sql.ref(`${table}.id`)} = ${id}`
    return hasHandle ? sql`(${hasId} or ${sql.ref(`${table}.handle`)} = ${id})` : hasId
  }

  /** Rows with these columns, for a field. `rest`: of the query, after its table. `columns`: further ones. */
  rows(rest: RawBuilder<unknown>, columns: RawBuilder<unknown> = sql``): RawBuilder<unknown> {
    return sql`(select ${this.#columns}${columns} from ${sql.table(this.resource.table)} ${rest})`
  }
}

function timeFormatOf(schema: TSchema): Show | undefined {
  return schema === Time ? formatTime : schema === NullableTime ? formatOptionalTime : undefined
}

/** The collected form of a resource, and its full form, which has more. */
export function formsOf(
  name: ResourceName,
  fields: Fields,
  furtherFields: Fields,
  { title, extra = {} }: FormOptions = {},
): { readonly collected: Form; readonly form: Form } {
  return {
    collected: new Form(name, fields, { title: `Collected${RESOURCES[name].name}`, extra }),
    form: new Form(name, { ...fields, ...furtherFields }, { ...(title !== undefined && { title }), extra }),
  }
}

export function fixed(schema: TSchema, value: unknown): Field {
  return new Field(schema, 'id', () => value)
}

/** A field that is always null. It has a form too, since generators leave out what is only null. */
export function alwaysNull(form: TSchema): Field {
  return fixed(nullable(form, { description: 'Always null.' }), null)
}

/** A linked resource, which always exists. */
export function linked(form: Form, where: RawBuilder<unknown>): Field {
  const which = sql`where ${where}`
  const column = sql`(select to_json(one) from ${form.rows(which)} as one)`
  return new Field(form.schema, column, showOf(form), { form, which })
}

export function optionalLink(form: Form, where: RawBuilder<unknown>): Field {
  const { column, link } = linked(form, where)
  const show = showOf(form)
  return new Field(
    nullable(form.schema),
    column,
    (row: FormRow | null, site: Site) => (row === null ? null : show(row, site)),
    link,
  )
}

/** `order`: default, by id. `filter`: of the list with all of them, by the id of the resource that the form is of. */
interface LinkedOptions {
  readonly order?: RawBuilder<unknown>
  readonly filter?: (id: string) => Readonly<Record<string, string>>
}

/** Linked resources, of which the form shows the first MAX_NESTED. `which`: the query after their table. */
export function linkedAll(
  form: Form,
  which: RawBuilder<unknown>,
  {
    // an expression: PostgreSQL would read the index of all ids until it has found enough of those that are linked
    order = sql`${sql.ref(`${form.resource.table}.id`)} || ''`,
    filter = () => ({}),
  }: LinkedOptions = {},
): Field {
  const rows = form.rows(sql`${which} order by ${order} limit ${sql.lit(MAX_NESTED + 1)}`)
  const show = showOf(form)
  return new LinkedList(
    Type.Array(form.schema, { maxItems: MAX_NESTED }),
    sql`(select coalesce(json_agg(one), '[]') from ${rows} as one)`,
    (all: readonly FormRow[], site: Site) => all.slice(0, MAX_NESTED).map((row) => show(row, site)),
    { form, which },
    (all: readonly FormRow[], { baseUrl }: Site, { id, account }) => {
      if (all.length <= MAX_NESTED) return undefined
      const owner = (account as FormRow | undefined)?.id ?? id // of an account itself
      const parameters = new URLSearchParams({
        ...filter(id),
        ...(owner.startsWith('acc-') && { account_id: owner }),
      })
      return `${baseUrl}/1.0/${form.resource.path}?${parameters.toString()}`
    },
  )
}

function showOf(form: Form): (row: FormRow, site: Site) => Representation {
  return (row, site) => form.show(site, row)
}
