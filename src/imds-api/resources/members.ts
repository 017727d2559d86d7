/** The routes of members: their GET, which conditions.ts repeats before a change, and their changes. */
import type { FastifyReply, FastifyRequest, FastifySchema, RouteShorthandOptions } from 'fastify'
import type { Static, TObject, TSchema } from 'typebox'
import type { Caller } from '../auth/account-choice.ts'
import type { Reader, Tx } from '../database/transaction.ts'
import { JsonMember } from '../http/idempotency.ts'
import type { ApiServer } from '../http/server.ts'
import type { ChangeRequest } from '../model/account-states.ts'
import type { Member } from './conditions.ts'
import type { ResourceParts } from './parts.ts'
import type { Resource } from './table.ts'

/** A member as responses show it. */
type Shown<Form extends TObject> = Static<Form> | JsonMember

/**
 * The GET of a member in its full form. `path`: if it is not that of the resource with an id. `load`: refuses if it does
 * not exist. `read`: what a GET does instead, with the same result.
 */
export interface MemberRoute<Form extends TObject> {
  readonly path?: string
  readonly operationId?: string
  readonly summary?: string
  readonly description: string
  readonly form: Form
  readonly load: (database: Reader, request: FastifyRequest, id: string) => Promise<Shown<Form>>
  readonly read?: (request: FastifyRequest, id: string) => Promise<Shown<Form>>
}

/** Adds the route. */
export function addMember<Form extends TObject>(
  server: ApiServer,
  db: Reader,
  { table, path, tags, params, name, noun }: Resource,
  { form, load, read = (request, id) => load(db, request, id), ...route }: MemberRoute<Form>,
): void {
  const { path: url = `/${path}/:id`, ...about } = route
  const response: { readonly 200: TSchema } = { 200: form }
  server.get(
    url,
    {
      schema: {
        ...{ operationId: `get${name}`, summary: `Get ${noun}`, ...about, tags, response },
        ...(url.includes(':id') && { params }),
      },
      config: { member: { table, load: load as Member['load'] } },
    },
    async (request, reply) => send(reply, 200, await read(request, idOf(request))),
  )
}

/**
 * A route that changes a member. `status`: for success, default 200. `change`: the request, if model/account-states.ts
 * lists it. `committed`: called after the commit.
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
  readonly change?: ChangeRequest | ((body: Static<Body>) => ChangeRequest)
  readonly committed?: () => void
}

/** A request for a change. `id`: of the path; '' if the path has none. */
export interface MemberChange<Body extends TSchema> {
  readonly caller: Caller
  readonly accountId: string
  readonly id: string
  readonly body: Static<Body>
  readonly reply: FastifyReply
}
type Work<Body extends TSchema, Result> = (tx: Tx, change: MemberChange<Body>) => Promise<Result>

/** Adds the routes of the members of a resource that belongs to an account. Each method adds one. */
export class Members<Form extends TObject> {
  readonly #server: ApiServer
  readonly #parts: Pick<ResourceParts, 'db' | 'accounts'>
  readonly #resource: Resource
  readonly #form: Form
  readonly #load: (database: Reader, accountId: string, id: string) => Promise<Shown<Form>>

  /** `form`: the full one, which all routes respond with. `load`: refuses if the member does not exist. */
  constructor(
    server: ApiServer,
    parts: Pick<ResourceParts, 'db' | 'accounts'>,
    resource: Resource,
    form: Form,
    load: (database: Reader, accountId: string, id: string) => Promise<Shown<Form>>,
  ) {
    this.#server = server
    this.#parts = parts
    this.#resource = resource
    this.#form = form
    this.#load = load
  }

  /** GET of a member. */
  get(description: string, read?: MemberRoute<Form>['read']): void {
    addMember(this.#server, this.#parts.db, this.#resource, {
      ...{ description, form: this.#form, ...(read && { read }) },
      load: (database, { caller }, id) => this.#load(database, caller.accountId, id),
    })
  }

  /** POST to the collection. `create` returns the id. */
  create<Body extends TSchema>(route: ChangeRoute<Body>, create: Work<Body, string>): void {
    const { path, name, noun } = this.#resource
    const about = { operationId: `create${name}`, summary: `Create ${noun}`, ...route }
    this.change('POST', `/${path}`, about, async (tx, change) =>
      this.#load(tx, change.accountId, await create(tx, change)),
    )
  }

  /** PUT of a member. The response shows it after the change. */
  update<Body extends TSchema>(route: ChangeRoute<Body>, update: Work<Body, void>): void {
    const { path, name, noun } = this.#resource
    const about = { operationId: `update${name}`, summary: `Change ${noun}`, ...route }
    this.change('PUT', `/${path}/:id`, about, this.#andLoad(update))
  }

  /** DELETE of a member that exists no more after it: the response shows it as it was before. */
  remove(route: ChangeRoute<TObject>, remove: Work<TObject, void>): void {
    this.#delete(route, async (tx, change) => {
      const last = await this.#load(tx, change.accountId, change.id)
      await remove(tx, change)
      return last
    })
  }

  /** DELETE of a member that stays readable: the response shows it after the change. */
  end(route: ChangeRoute<TObject>, end: Work<TObject, void>): void {
    this.#delete(route, this.#andLoad(end))
  }

  /** POST of an action. The response shows the member after it. */
  action<Body extends TSchema>(
    verb: string,
    route: ChangeRoute<Body> & Required<Pick<ChangeRoute<Body>, 'operationId' | 'summary'>>,
    act: Work<Body, void>,
  ): void {
    this.change('POST', `/${this.#resource.path}/:id/${verb}`, route, this.#andLoad(act))
  }

  /** PUT of `lock_resource` and of `unlock_resource`. */
  lock(set: (tx: Tx, change: MemberChange<TObject>, locked: boolean) => Promise<void>): void {
    const { path, name, kind, noun } = this.#resource
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
      this.change('PUT', `/${path}/:id/${verb.toLowerCase()}_resource`, about, this.#andLoad(work))
    }
  }

  /** Any change. `work` returns what the response shows. */
  change<Body extends TSchema>(
    method: 'POST' | 'PUT' | 'DELETE',
    url: string,
    { status = 200, change, committed, bodyLimit, preValidation, preHandler, ...about }: ChangeRoute<Body>,
    work: Work<Body, Shown<Form>>,
  ): void {
    const { tags, params } = this.#resource
    const { accounts } = this.#parts
    const schema: FastifySchema = {
      ...about,
      tags,
      response: { [status]: this.#form },
      ...(url.includes(':id') && { params }),
    }
    this.#server.route({
      ...{ method, url, schema },
      ...(bodyLimit && { bodyLimit }),
      ...(preValidation && { preValidation }),
      ...(preHandler && { preHandler }),
      handler: async (request, reply) => {
        const { caller } = request
        const asked = {
          caller,
          accountId: caller.accountId,
          id: idOf(request),
          body: request.body as Static<Body>,
          reply,
        }
        const kind = typeof change === 'function' ? change(asked.body) : change
        const result = await accounts.commit(caller, (tx) => work(tx, asked), kind)
        committed?.()
        return send(reply, status, result)
      },
    })
  }

  #delete(route: ChangeRoute<TObject>, work: Work<TObject, Shown<Form>>): void {
    const { path, name, noun } = this.#resource
    this.change('DELETE', `/${path}/:id`, { operationId: `delete${name}`, summary: `Delete ${noun}`, ...route }, work)
  }

  #andLoad<Body extends TSchema>(work: Work<Body, void>): Work<Body, Shown<Form>> {
    return async (tx, change) => {
      await work(tx, change)
      return this.#load(tx, change.accountId, change.id)
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
