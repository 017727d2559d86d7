/** The routes of members: their GET, which conditions.ts repeats before a change, and their changes. */
import type { FastifyReply, FastifyRequest, FastifySchema, RouteShorthandOptions } from 'fastify'
import { sql } from 'kysely'
import type { Static, TObject } from 'typebox'
import { accountOf, memberRequester } from '../../auth/caller.ts'
import { prepareForPool } from '../../database/prepared.ts'
import type { Db, Tx } from '../../database/transaction.ts'
import { STATE_RULES, type StateRule } from '../../model/account-states.ts'
import { conditionOf } from './conditions.ts'
import type { Form, Representation, RowsOf } from './forms.ts'
import { addList, idOf, pick, type Collection } from './lists.ts'
import type { RouteParts } from './parts.ts'
import type { Resource } from './table.ts'

/**
 * A route of members. `operationId` and `summary`: if they are not those of its kind. `status`: for success, default
 * 200. `rule`: if it depends on the body; default: that of model/account-states.ts for the route. `onCommit`: called
 * after the commit.
 */
export interface MemberRoute<Body extends TObject> extends Pick<
  FastifySchema,
  'operationId' | 'summary' | 'querystring' | 'x-headers'
> {
  readonly description: string
  readonly body?: Body
  readonly status?: 200 | 201 | 202
  readonly rule?: (body: Static<Body>) => StateRule
  readonly onCommit?: () => void
  readonly options?: Pick<RouteShorthandOptions, 'bodyLimit' | 'preValidation' | 'preHandler' | 'validatorCompiler'>
}

/** A request for a member. `id`: of the path; '' if the path has none. `body`: the fields that its schema has. */
export interface MemberRequest<Body extends TObject> {
  readonly request: FastifyRequest
  readonly reply: FastifyReply
  readonly id: string
  readonly body: Static<Body>
  readonly rule: StateRule
}
type MemberChange<Body extends TObject> = MemberRequest<Body> & { readonly accountId: string }
type Work<Body extends TObject, Result> = (tx: Tx, change: MemberChange<Body>) => Promise<Result>

/**
 * Members. `form`: the full one, which all routes but the list respond with. `collected`: that of the list; default:
 * the full one. `as`: for a singleton such as /account. `rows`: those that a request may see; default: those of its
 * account, of which a list shows those that are present. `load`: replaces the default SELECT of a GET; refuses if the
 * member does not exist. `accountOf`: of a change; default, that of the request.
 */
export interface MembersOf {
  readonly form: Form
  readonly collected?: Form
  readonly as?: Pick<Resource, 'path' | 'name' | 'noun'> & { readonly schema?: TObject }
  readonly rows?: (request: FastifyRequest) => RowsOf
  readonly load?: (db: Db, request: FastifyRequest, id: string) => Promise<Representation>
  readonly accountOf?: (request: FastifyRequest) => string
}

/** Adds the routes of members. Each method adds one. */
export class Members {
  readonly resource: Resource
  /** Of a member. */
  readonly path: string
  readonly schema: TObject
  readonly #parts: RouteParts
  readonly #of: MembersOf

  constructor(parts: RouteParts, of: MembersOf) {
    const { form, as } = of
    this.resource = { ...form.resource, ...as }
    this.schema = as?.schema ?? form.schema
    this.#parts = parts
    this.#of = of
    this.path = as === undefined ? `/${form.resource.path}/:id` : `/${as.path}`
  }

  /** Loads a member. Refuses if it does not exist. */
  readonly load = (db: Db, request: FastifyRequest, id: string): Promise<Representation> => {
    const { form, load } = this.#of
    if (load !== undefined) return load(db, request, id)
    return form.load(db, this.#parts.site, id, this.#rows(request))
  }

  /** GET of the collection. `rows`: overrides `MembersOf.rows`. */
  list(collection: Omit<Collection, 'form' | 'rows'> & Partial<Pick<Collection, 'rows'>>): void {
    const { form, collected = form, rows } = this.#of
    const { isPresent } = form.resource
    addList(this.#parts, {
      rows: rows ?? ((request) => ({ where: sql`${this.#isOfAccount(accountOf(request))} and ${isPresent}` })),
      ...collection,
      form: collected,
    })
  }

  /** GET of a member. */
  get(description: string, about: Pick<FastifySchema, 'summary'> = {}): void {
    if (this.#of.as === undefined) this.#parts.affected.add(this.#of.form, this.#rows)
    const read = this.#prepare() ?? ((request, id) => this.load(this.#parts.db, request, id))
    const route = { ...this.named('Get'), ...about, description }
    this.route('GET', this.path, route, ({ request, id }) => read(request, id))
  }

  /** POST to the collection. `create` returns the id. */
  create<Body extends TObject>(route: MemberRoute<Body>, create: Work<Body, string>): void {
    this.change('POST', `/${this.resource.path}`, { ...this.named('Create'), ...route }, async (tx, change) =>
      this.load(tx, change.request, await create(tx, change)),
    )
  }

  /** PUT of a member. The response shows it after the change. */
  update<Body extends TObject>(route: MemberRoute<Body>, update: Work<Body, void>): void {
    this.change('PUT', this.path, { ...this.named('Change', 'update'), ...route }, this.#andLoad(update))
  }

  /** DELETE of a member that exists no more after it: the response shows it as it was before. */
  remove(route: MemberRoute<TObject>, remove: Work<TObject, void>): void {
    this.change('DELETE', this.path, { ...this.named('Delete'), ...route }, async (tx, change) => {
      const last = await this.load(tx, change.request, change.id)
      await remove(tx, change)
      return last
    })
  }

  /** DELETE of a member that stays readable: the response shows it after the change. */
  end(route: MemberRoute<TObject>, end: Work<TObject, void>): void {
    this.change('DELETE', this.path, { ...this.named('Delete'), ...route }, this.#andLoad(end))
  }

  /** POST of an action. The response shows the member after it, with the fields that the action returns. */
  action<Body extends TObject>(
    verb: string,
    route: MemberRoute<Body>,
    act: Work<Body, void> | Work<Body, Readonly<Record<string, string>> | undefined>,
  ): void {
    const about = this.named(verb.charAt(0).toUpperCase() + verb.slice(1))
    this.change('POST', `${this.path}/${verb}`, { ...about, ...route }, async (tx, change) => {
      const more = await act(tx, change)
      const loaded = await this.load(tx, change.request, change.id)
      return { ...loaded, ...more }
    })
  }

  /** PUT of `lock_resource` and of `unlock_resource`. */
  lock(set: (tx: Tx, change: MemberChange<TObject>, locked: boolean) => Promise<void>): void {
    for (const verb of ['Lock', 'Unlock']) {
      const about = { ...this.named(verb), description: `A locked ${this.resource.kind} cannot be deleted.` }
      const work: Work<TObject, void> = (tx, change) => set(tx, change, verb === 'Lock')
      this.change('PUT', `${this.path}/${verb.toLowerCase()}_resource`, about, this.#andLoad(work))
    }
  }

  /** Any change in an account. `work` returns what the response shows. */
  change<Body extends TObject>(
    method: 'POST' | 'PUT' | 'DELETE',
    url: string,
    { onCommit, ...route }: MemberRoute<Body>,
    work: Work<Body, Representation>,
  ): void {
    const { accountOf: accountOfChange = accountOf } = this.#of
    this.route(method, url, route, async (asked) => {
      const { request, reply, rule } = asked
      const accountId = accountOfChange(request)
      const requester = memberRequester(request, accountId, conditionOf(this, request, reply))
      const change = { ...asked, accountId }
      const shown = await this.#parts.accounts.commit(accountId, requester, (tx) => work(tx, change), rule)
      onCommit?.()
      return shown
    })
  }

  /** Any route. `respond` returns what the response shows. */
  route<Body extends TObject>(
    method: 'GET' | 'POST' | 'PUT' | 'DELETE',
    url: string,
    { status = 200, rule, options, ...about }: Omit<MemberRoute<Body>, 'onCommit'>,
    respond: (asked: MemberRequest<Body>) => Promise<Representation>,
  ): void {
    const { tags, params } = this.resource
    const schema: FastifySchema = {
      ...about,
      tags,
      response: { [status]: this.schema },
      ...(url.includes(':id') && { params }),
    }
    const fields = Object.keys(about.body?.properties ?? {})
    const named = `${method} ${url.replace(':id', 'ID')}`
    const ruleOfRoute = Object.hasOwn(STATE_RULES, named) ? (named as StateRule) : 'every other change'
    this.#parts.server.route({
      ...{ method, url, schema, ...options },
      handler: async (request, reply) => {
        const body = pick(request.body as object, fields) as Static<Body>
        const asked = { request, reply, id: idOf(request), body, rule: rule?.(body) ?? ruleOfRoute }
        const shown = await respond(asked)
        void reply.code(status)
        return reply.send(shown)
      },
    })
  }

  /** The names of the operation that does something to a member. */
  named(word: string, verb = word.toLowerCase()): Required<Pick<FastifySchema, 'operationId' | 'summary'>> {
    const { name, noun } = this.resource
    return { operationId: `${verb}${name}`, summary: `${word} ${noun}` }
  }

  readonly #rows = (request: FastifyRequest): RowsOf =>
    this.#of.rows?.(request) ?? { where: this.#isOfAccount(accountOf(request)) }

  #isOfAccount(accountId: string) {
    return sql<boolean>`${sql.ref(`${this.resource.table}.account_id`)} = ${accountId}`
  }

  /** The default `load` as a prepared query: building a query takes longer than running it. */
  #prepare(): ((request: FastifyRequest, id: string) => Promise<Representation>) | undefined {
    const { form, load, rows } = this.#of
    if (load !== undefined || rows !== undefined) return undefined
    const { db, pool, site } = this.#parts
    const placeholders: [account: string, id: string] = ['$account', '$id']
    const where = sql`${this.#isOfAccount(placeholders[0])} and ${form.isNamed(placeholders[1])}`
    const query = form.query(db, { where }).compile(db)
    const find = prepareForPool(pool, form.resource.path, placeholders, query)
    return async (request, id) => form.represent(site, id, await find(accountOf(request), id))
  }

  #andLoad<Body extends TObject>(work: Work<Body, void>): Work<Body, Representation> {
    return async (tx, change) => {
      await work(tx, change)
      return this.load(tx, change.request, change.id)
    }
  }
}
