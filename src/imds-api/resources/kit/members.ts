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
import type { ResourceParts } from './parts.ts'
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
  readonly options?: Pick<RouteShorthandOptions, 'bodyLimit' | 'preValidation' | 'validatorCompiler'>
}

/** A request for a member. `id`: of the path; '' if the path has none. `body`: the fields that its schema has. */
export interface MemberRequest<Body extends TObject> {
  readonly request: FastifyRequest
  readonly reply: FastifyReply
  readonly id: string
  readonly body: Static<Body>
  readonly rule: StateRule
}
/** A change in its transaction. */
export interface Change<Body extends TObject = TObject> extends MemberRequest<Body> {
  readonly tx: Tx
  readonly accountId: string
}

/**
 * Members. `form`: the full one, which all routes but the list respond with. `collected`: that of the list; default:
 * the full one. `as`: for a singleton such as /account. `rows`: those that a request may see; default: those of its
 * account, of which a list shows those that are present. `load`: replaces the default SELECT of a GET; refuses if the
 * member does not exist. `accountOf`: of a change; default, that of the request.
 */
export interface MembersOf {
  readonly form: Form
  readonly collected?: Form
  readonly as?: Pick<Resource, 'path' | 'name' | 'noun'>
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
  readonly #parts: ResourceParts
  readonly #of: MembersOf

  constructor(parts: ResourceParts, of: MembersOf) {
    const { form, as } = of
    this.resource = { ...form.resource, ...as }
    this.schema = form.schema
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

  /** GET of the collection. */
  list(collection: Omit<Collection, 'form' | 'rows'>): void {
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
    this.route('GET', this.path, 'Get', { ...about, description }, ({ request, id }) => read(request, id))
  }

  /** POST to the collection. `create` returns the id. */
  create<Body extends TObject>(route: MemberRoute<Body>, create: (change: Change<Body>) => Promise<string>): void {
    this.change('POST', `/${this.resource.path}`, 'Create', route, async (change) =>
      this.#read(change, await create(change)),
    )
  }

  /** PUT of a member. The response shows it after the change. */
  update<Body extends TObject>(route: MemberRoute<Body>, update: (change: Change<Body>) => Promise<void>): void {
    this.change('PUT', this.path, 'Change', route, async (change) => {
      await update(change)
      return this.#read(change)
    })
  }

  /** DELETE of a member that exists no more after it: the response shows it as it was before. */
  remove(route: MemberRoute<TObject>, remove: (change: Change) => Promise<void>): void {
    this.change('DELETE', this.path, 'Delete', route, async (change) => {
      const last = await this.#read(change)
      await remove(change)
      return last
    })
  }

  /** DELETE of a member that stays readable: the response shows it after the change. */
  end(route: MemberRoute<TObject>, end: (change: Change) => Promise<void>): void {
    this.change('DELETE', this.path, 'Delete', route, async (change) => {
      await end(change)
      return this.#read(change)
    })
  }

  /** POST of an action. The response shows the member after it, with the fields that the action returns. */
  action<Body extends TObject>(
    verb: string,
    route: MemberRoute<Body>,
    act: (change: Change<Body>) => Promise<void> | Promise<Readonly<Record<string, string>> | undefined>,
  ): void {
    const word = verb.charAt(0).toUpperCase() + verb.slice(1)
    this.change('POST', `${this.path}/${verb}`, word, route, async (change) => {
      const fields = await act(change)
      return { ...(await this.#read(change)), ...fields }
    })
  }

  /** PUT of `lock_resource` and of `unlock_resource`. */
  lock(set: (change: Change, locked: boolean) => Promise<void>): void {
    const route = { description: `A locked ${this.resource.kind} cannot be deleted.` }
    for (const word of ['Lock', 'Unlock'])
      this.change('PUT', `${this.path}/${word.toLowerCase()}_resource`, word, route, async (change) => {
        await set(change, word === 'Lock')
        return this.#read(change)
      })
  }

  /**
   * Any change in an account: the one wrapper of all. At the turn of the change, in its transaction, it checks the right
   * of the caller, the state of the account, `If-Match` and the Idempotency-Key; `run` makes the change, and returns what
   * the response shows.
   */
  change<Body extends TObject>(
    method: 'POST' | 'PUT' | 'DELETE',
    url: string,
    word: string,
    { onCommit, ...route }: MemberRoute<Body>,
    run: (change: Change<Body>) => Promise<Representation>,
  ): void {
    const { accountOf: accountOfChange = accountOf } = this.#of
    this.route(method, url, word, route, async (member) => {
      const { request, reply, rule } = member
      const accountId = accountOfChange(request)
      const requester = memberRequester(request, accountId, conditionOf(this, request, reply))
      const commit = async (tx: Tx) => run({ ...member, tx, accountId })
      const result = await this.#parts.accounts.commit(accountId, requester, commit, rule)
      onCommit?.()
      return result
    })
  }

  /**
   * Any route. `word`: what it does, in its summary and operationId. `respond` returns what the response shows.
   */
  route<Body extends TObject>(
    method: 'GET' | 'POST' | 'PUT' | 'DELETE',
    url: string,
    word: string,
    { status = 200, rule, options, ...about }: Omit<MemberRoute<Body>, 'onCommit'>,
    respond: (member: MemberRequest<Body>) => Promise<Representation>,
  ): void {
    const { tags, params, name, noun } = this.resource
    const schema: FastifySchema = {
      operationId: `${word === 'Change' ? 'update' : word.toLowerCase()}${name}`,
      summary: `${word} ${noun}`,
      ...about,
      tags,
      response: { [status]: this.schema },
      ...(url.includes(':id') && { params }),
    }
    const fields = Object.keys(about.body?.properties ?? {})
    const routeName = `${method} ${url.replace(':id', 'ID')}`
    const ruleOfRoute = Object.hasOwn(STATE_RULES, routeName) ? (routeName as StateRule) : 'every other change'
    this.#parts.server.route({
      ...{ method, url, schema, ...options },
      handler: async (request, reply) => {
        const body = pick(request.body as object, fields) as Static<Body>
        const result = await respond({ request, reply, id: idOf(request), body, rule: rule?.(body) ?? ruleOfRoute })
        return reply.code(status).send(result)
      },
    })
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

  /** What the response to a change shows. */
  async #read({ tx, request, id: ofPath }: Change, id = ofPath): Promise<Representation> {
    return this.load(tx, request, id)
  }
}
