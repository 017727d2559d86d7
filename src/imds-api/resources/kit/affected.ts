/**
 * Which resources show a change: those whose form has a link to the changed one. It follows from the links that the forms
 * declare, at the time when the event is read, and from what the resource was linked to before, which the event has. So
 * a program that reads again what its events affect has what a GET returns.
 *
 * Only resources that the reader may see are named, and none that is deleted. What belongs to a region, or to another
 * account, has no events here: it is shown by resources of all accounts.
 */
import type { FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import { accountOf } from '../../auth/caller.ts'
import type { EventRow } from '../../changes/events.ts'
import type { Db } from '../../database/transaction.ts'
import { ALL_ROWS } from '../../model/resources.ts'
import { MAX_NESTED, type Form, type Link, type Representation, type RowsOf, type Site } from './forms.ts'

/** The `resource_type` and the id of a resource. */
export interface ResourceKey {
  readonly type: string
  readonly id: string
}
/** A full form, and the rows of it that a request may see. */
interface Readable {
  readonly form: Form
  readonly rows: (request: FastifyRequest) => RowsOf
}
type ChangedRow = Pick<EventRow, 'type' | 'resource' | 'action' | 'fields' | 'links'>

export class Affected {
  /** By `resource_type`. */
  readonly #readable = new Map<string, Readable>()

  /** Adds a form that has a GET. The last one of a type counts: of collaborations, the account's side. */
  add(form: Form, rows: Readable['rows']): void {
    this.#readable.set(form.resource.type, { form, rows })
  }

  /** What each event affects, itself first: at most MAX_NESTED. */
  async of(db: Db, request: FastifyRequest, events: readonly ChangedRow[]): Promise<readonly ResourceKey[][]> {
    const nested = events.filter((event) => this.#isInNested(event))
    const showing = await this.#showing(db, request, nested)
    const present = await this.#present(db, new Set(events.flatMap(({ links }) => links)))
    return events.map((event) => {
      const { type, resource: id, links } = event
      const all = [{ type, id }]
      const isNested = nested.includes(event)
      if (isNested && this.#shows('account', type)) all.push({ type: 'account', id: accountOf(request) })
      all.push(...links.flatMap((link) => present.get(link) ?? []).filter((one) => this.#shows(one.type, type)))
      if (isNested) all.push(...(showing.get(keyOf({ type, id })) ?? []))
      return [...new Map(all.map((one) => [keyOf(one), one])).values()].slice(0, MAX_NESTED)
    })
  }

  /** The nested forms of resources that the request may see, by `keyOf`. */
  async nested(
    db: Db,
    site: Site,
    request: FastifyRequest,
    resources: readonly ResourceKey[],
  ): Promise<ReadonlyMap<string, Representation>> {
    const found = new Map<string, Representation>()
    for (const [type, some] of Map.groupBy(resources, (one) => one.type)) {
      const { form, rows } = this.#readable.get(type) ?? {}
      const nested = this.#links().find(({ link }) => link.form.resource.type === type)?.link.form
      if (form === undefined || rows === undefined || nested === undefined) continue
      const { join, where } = rows(request)
      const isOne = sql`${sql.ref(`${form.resource.table}.id`)} = any(${some.map(({ id }) => id)})`
      const which = { ...(join && { join }), where: sql`(${where}) and ${isOne}` }
      for (const row of (await nested.query(db, which).execute(db)).rows)
        found.set(keyOf({ type, id: row.id }), nested.show(site, row))
    }
    return found
  }

  #links(): readonly (Readable & { readonly link: Link })[] {
    return [...this.#readable.values()].flatMap((one) => one.form.links.map((link) => ({ ...one, link })))
  }

  #linksTo(type: string) {
    return this.#links().filter(({ link }) => link.form.resource.type === type)
  }

  #shows(type: string, changed: string): boolean {
    return this.#linksTo(changed).some(({ form }) => form.resource.type === type)
  }

  /** True if the nested form of the resource shows the change. */
  #isInNested({ type, action, fields }: ChangedRow): boolean {
    const [first] = this.#linksTo(type)
    if (first === undefined) return false
    return action !== 'update' || fields.some((field) => Object.hasOwn(first.link.form.fields, field))
  }

  /** Those of the resources that are not deleted, by their ids. */
  async #present(db: Db, ids: ReadonlySet<string>): Promise<ReadonlyMap<string, ResourceKey>> {
    const queries = [...Map.groupBy(ids, typeOf)].flatMap(([type, some]) => {
      const { form } = this.#readable.get(type) ?? {}
      if (form === undefined) return []
      const { table, isPresent } = form.resource
      return sql<ResourceKey>`
        select ${type}::text as type, id from ${sql.table(table)} where id = any(${some}::text[]) and ${isPresent}`
    })
    if (queries.length === 0) return new Map()
    const { rows } = await sql<ResourceKey>`${sql.join(queries, sql` union all `)}`.execute(db)
    return new Map(rows.map((one) => [one.id, one]))
  }

  /** The resources that have a link to changed ones at present, by `keyOf` of the changed one. */
  async #showing(
    db: Db,
    request: FastifyRequest,
    events: readonly ChangedRow[],
  ): Promise<ReadonlyMap<string, readonly ResourceKey[]>> {
    const queries = [...Map.groupBy(events, ({ type }) => type)].flatMap(([type, some]) =>
      this.#linksTo(type)
        .filter(({ form }) => form.resource.type !== 'account')
        .map(({ form, rows, link }) => {
          const { table, isPresent, type: ofForm } = form.resource
          const { join = sql``, where } = rows(request)
          const changed = link.form.resource.table
          return sql<{ readonly changed: string; readonly type: string; readonly id: string }>`
            select ${type}::text || ' ' || changed.id as changed, ${ofForm}::text as type, showing.id
            from unnest(${[...new Set(some.map((event) => event.resource))]}::text[]) as changed (id)
            cross join lateral (
              select ${sql.ref(`${table}.id`)} as id from ${sql.table(table)} ${join}
              where (${where}) and ${isPresent} and exists (
                select from ${sql.table(changed)} ${link.which} and ${sql.ref(`${changed}.id`)} = changed.id)
              limit ${sql.lit(MAX_NESTED)}) as showing`
        }),
    )
    if (queries.length === 0) return new Map()
    const { rows } = await sql<{ readonly changed: string; readonly type: string; readonly id: string }>`
      ${sql.join(queries, sql` union all `)} order by 2, 3`.execute(db)
    return Map.groupBy(rows, ({ changed }) => changed)
  }
}

export function keyOf({ type, id }: ResourceKey): string {
  return `${type} ${id}`
}

function typeOf(id: string): string {
  return ALL_ROWS.find(({ prefix }) => id.startsWith(prefix))!.type
}
