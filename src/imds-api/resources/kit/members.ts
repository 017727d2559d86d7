/** The routes of members: their GET, which conditions.ts repeats before a change, and their changes. */
import type { FastifyReply, FastifyRequest, FastifySchema, RouteShorthandOptions } from 'fastify'
import { sql } from 'kysely'
import type { Static, TObject, TSchema } from 'typebox'
import { callerOf } from '../../auth/account-choice.ts'
import type { AccountRequester } from '../../changes/account-changes.ts'
import { prepareOne } from '../../database/prepared.ts'
import type { Db, Tx } from '../../database/transaction.ts'
import { JsonMember } from '../../http/idempotency.ts'
import type { ApiServer } from '../../http/server.ts'
import type { StateRule } from '../../model/account-states.ts'
import type { Form, Representation, RowsOf } from './forms.ts'
import { addList, type Collection } from './lists.ts'
import type { RouteParts } from './parts.ts'
import { addWait, type WaitableResource } from './waiting.ts'

/** A member as responses show it. */
export type Shown = Representation | JsonMember
/**
 * What the GET of a member shows besides: fields that are not in the database. `isShown`: the member has them. `read`:
 * may take long.
 */
export interface MoreFields {
  readonly isShown: (shown: Representation) => boolean
  readonly read: (id: string) => Promise<object>
}

/** A member with what its GET shows besides. */
async function complete(shown: Representation, more: MoreFields | undefined): Promise<Representation> {
  return more?.isShown(shown) === true ? { ...shown, ...(await more.read(shown.id)) } : shown
}

/**
 * A route that changes a member. `status`: for success, default 200. `rule`: the entry of
 * model/account-states.ts for the request. `onCommit`: called after the commit.
 */
export interface ChangeRoute<Body extends TSchema>
  extends
    Pick<FastifySchema, 'x-refusals' | 'x-headers'>,
    Pick<RouteShorthandOptions, 'bodyLimit' | 'preValidation' | 'preHandler'> {
  readonly operationId?: string
  readonly summary?: string
  readonly description: string
  readonly body?: Body
  readonly status?: 200 | 201 | 202
  readonly rule?: StateRule | ((body: Static<Body>) => StateRule)
  readonly onCommit?: () => void
}

/** A request for a change. `userId`: null for an API client. `id`: of the path; '' if the path has none. */
export interface MemberChange<Body extends TSchema> {
  readonly request: FastifyRequest
  readonly userId: string | null
  readonly accountId: string
  readonly id: string
  readonly body: Static<Body>
  readonly reply: FastifyReply
}
type Work<Body extends TSchema, Result> = (tx: Tx, change: MemberChange<Body>) => Promise<Result>

/**
 * Members. `form`: the full one, which all routes but the list respond with. `collected`: that of the list; default: the
 * full one. `path`: of a member, if it is not that of the resource with an id. `rows`: those that a request may see;
 * default: those of its account, of which a list shows those that are present. `load`: what a GET shows, if it is more
 * than the form of such a row; refuses if the member does not exist. `requesterOf`: default, the caller.
 */
export interface MembersOf {
  readonly form: Form
  readonly collected?: Form
  readonly path?: string
  readonly rows?: (request: FastifyRequest) => RowsOf
  readonly load?: (db: Db, request: FastifyRequest, id: string) => Promise<Shown>
  readonly more?: MoreFields
  readonly requesterOf?: (request: FastifyRequest) => AccountRequester
}

/** Adds the routes of members. Each method adds one. */
export class Members {
  readonly #server: ApiServer
  readonly #parts: RouteParts
  readonly #of: MembersOf
  readonly #path: string

  constructor(server: ApiServer, parts: RouteParts, of: MembersOf) {
    this.#server = server
    this.#parts = parts
    this.#of = of
    this.#path = of.path ?? `/${of.form.resource.path}/:id`
  }

  /** Loads a member, without `more`. Refuses if it does not exist. */
  readonly load = (db: Db, request: FastifyRequest, id: string): Promise<Shown> => {
    const { form, load, rows = (one) => ({ where: this.#isOfAccount(callerOf(one).accountId) }) } = this.#of
    return load === undefined ? form.load(db, this.#parts.site, id, rows(request)) : load(db, request, id)
  }

  /** GET of the collection. `rows`: if they are other ones than those of `rows` above. */
  list(collection: Omit<Collection, 'form' | 'rows'> & Partial<Pick<Collection, 'rows'>>): void {
    const { form, collected = form, rows } = this.#of
    const { isPresent } = form.resource
    addList(this.#server, this.#parts, {
      rows: rows ?? ((request) => ({ where: sql`${this.#isOfAccount(callerOf(request).accountId)} and ${isPresent}` })),
      ...collection,
      form: collected,
    })
  }

  /** GET of a member. */
  get(description: string, about: Pick<FastifySchema, 'operationId' | 'summary'> = {}): void {
    const { form, more } = this.#of
    const { table, tags, params, name, noun } = form.resource
    const read = this.#prepare() ?? ((request, id) => this.load(this.#parts.db, request, id))
    this.#server.get(
      this.#path,
      {
        schema: {
          ...{ operationId: `get${name}`, summary: `Get ${noun}`, ...about, description, tags },
          response: { 200: form.schema },
          ...(this.#path.includes(':id') && { params }),
        },
        config: { member: { table, load: this.load, more } },
      },
      async (request, reply) => {
        const shown = await read(request, idOf(request))
        if (shown instanceof JsonMember || more === undefined) return send(reply, 200, shown)
        request.leaveShare?.() // the store may hang
        return send(reply, 200, await complete(shown, more))
      },
    )
  }

  /** GET that waits for a state. */
  wait<State extends string>(canBecome: WaitableResource<State>['canBecome']): void {
    const { form, more } = this.#of
    const load = this.load as WaitableResource<State>['load']
    addWait(this.#server, this.#parts, form, { canBecome, load, complete: (shown) => complete(shown, more) })
  }

  /** POST to the collection. `create` returns the id. */
  create<Body extends TSchema>(route: ChangeRoute<Body>, create: Work<Body, string>): void {
    const { path, name, noun } = this.#of.form.resource
    const about = { operationId: `create${name}`, summary: `Create ${noun}`, ...route }
    this.change('POST', `/${path}`, about, async (tx, change) =>
      this.load(tx, change.request, await create(tx, change)),
    )
  }

  /** PUT of a member. The response shows it after the change. */
  update<Body extends TSchema>(route: ChangeRoute<Body>, update: Work<Body, void>): void {
    const { name, noun } = this.#of.form.resource
    const about = { operationId: `update${name}`, summary: `Change ${noun}`, ...route }
    this.change('PUT', this.#path, about, this.#andLoad(update))
  }

  /** DELETE of a member that exists no more after it: the response shows it as it was before. */
  remove(route: ChangeRoute<TObject>, remove: Work<TObject, void>): void {
    this.#delete(route, async (tx, change) => {
      const last = await this.load(tx, change.request, change.id)
      await remove(tx, change)
      return last
    })
  }

  /** DELETE of a member that stays readable: the response shows it after the change. */
  end(route: ChangeRoute<TObject>, end: Work<TObject, void>): void {
    this.#delete(route, this.#andLoad(end))
  }

  /** POST of an action. The response shows the member after it, with the fields that the action returns. */
  action<Body extends TSchema>(
    verb: string,
    route: ChangeRoute<Body> & Required<Pick<ChangeRoute<Body>, 'operationId' | 'summary'>>,
    act: Work<Body, void> | Work<Body, Readonly<Record<string, string>> | undefined>,
  ): void {
    this.change('POST', `${this.#path}/${verb}`, route, async (tx, change) => {
      const more = await act(tx, change)
      const loaded = await this.load(tx, change.request, change.id)
      return more === undefined || loaded instanceof JsonMember ? loaded : { ...loaded, ...more }
    })
  }

  /** PUT of `lock_resource` and of `unlock_resource`. */
  lock(set: (tx: Tx, change: MemberChange<TObject>, locked: boolean) => Promise<void>): void {
    const { name, kind, noun } = this.#of.form.resource
    for (const [verb, locked] of [
      ['Lock', true],
      ['Unlock', false],
    ] as const) {
      const about = {
        operationId: `${verb.toLowerCase()}${name}`,
        summary: `${verb} ${noun}`,
        description: `A locked ${kind} cannot be deleted.`,
      }
      const work: Work<TObject, void> = (tx, change) => set(tx, change, locked)
      this.change('PUT', `${this.#path}/${verb.toLowerCase()}_resource`, about, this.#andLoad(work))
    }
  }

  /** Any change. `work` returns what the response shows. */
  change<Body extends TSchema>(
    method: 'POST' | 'PUT' | 'DELETE',
    url: string,
    { status = 200, rule, onCommit, bodyLimit, preValidation, preHandler, ...about }: ChangeRoute<Body>,
    work: Work<Body, Shown>,
  ): void {
    const { form, requesterOf = callerOf } = this.#of
    const { tags, params } = form.resource
    const schema: FastifySchema = {
      ...about,
      tags,
      response: { [status]: form.schema },
      ...(url.includes(':id') && { params }),
    }
    this.#server.route({
      ...{ method, url, schema },
      ...(bodyLimit && { bodyLimit }),
      ...(preValidation && { preValidation }),
      ...(preHandler && { preHandler }),
      handler: async (request, reply) => {
        const requester = requesterOf(request)
        const { accountId } = requester
        const body = request.body as Static<Body>
        const { tokenHolder } = request
        const userId = tokenHolder.kind === 'user' ? tokenHolder.userId : null
        const asked = { request, userId, accountId, id: idOf(request), body, reply }
        const stateRule = typeof rule === 'function' ? rule(body) : rule
        const result = await this.#parts.accounts.commit(requester, (tx) => work(tx, asked), stateRule)
        onCommit?.()
        return send(reply, status, result)
      },
    })
  }

  #isOfAccount(accountId: string) {
    return sql<boolean>`${sql.ref(`${this.#of.form.resource.table}.account_id`)} = ${accountId}`
  }

  /** The default `load` as a prepared query: building a query takes longer than running it. */
  #prepare(): ((request: FastifyRequest, id: string) => Promise<Shown>) | undefined {
    const { form, load, rows } = this.#of
    const { path, hasHandle } = form.resource
    // a handle uses its value more than once
    if (load !== undefined || rows !== undefined || hasHandle === true) return undefined
    const { db, pool, site } = this.#parts
    const find = prepareOne(pool, path, ['account', 'id'], (accountId, id) => ({
      compile: () =>
        form.query(db, { where: sql`${this.#isOfAccount(accountId)} and ${form.isNamed(id)}` }).compile(db),
    }))
    return async (request, id) => form.represent(site, id, await find(callerOf(request).accountId, id))
  }

  #delete(route: ChangeRoute<TObject>, work: Work<TObject, Shown>): void {
    const { name, noun } = this.#of.form.resource
    this.change('DELETE', this.#path, { operationId: `delete${name}`, summary: `Delete ${noun}`, ...route }, work)
  }

  #andLoad<Body extends TSchema>(work: Work<Body, void>): Work<Body, Shown> {
    return async (tx, change) => {
      await work(tx, change)
      return this.load(tx, change.request, change.id)
    }
  }
}

/** The id in the path of a request; '': there is none. */
export function idOf({ params }: FastifyRequest): string {
  return (params as { readonly id?: string }).id ?? ''
}

function send(reply: FastifyReply, status: number, result: unknown): FastifyReply {
  void reply.code(status)
  if (!(result instanceof JsonMember)) return reply.send(result)
  reply.respondedId = result.id
  return reply.type('application/json; charset=utf-8').send(result.text)
}
