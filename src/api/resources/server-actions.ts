/** The actions on servers. model/server-actions.ts says in which state each is possible. */
import Type, { type Static } from 'typebox'
import { newToken } from '../auth/secrets.ts'
import { expectedStatus, refuseBeyondOpenActions, requestAction } from '../database/compute-actions.ts'
import { createSnapshot } from '../database/create-snapshot.ts'
import { refuseBeyondLimit } from '../database/limits.ts'
import type { Change } from '../database/transaction.ts'
import { ACTION_RULES, isPossible, SERVER_ACTIONS, type ServerAction } from '../model/server-actions.ts'
import { isRefusal, refuse, type Refusal } from '../refusal.ts'
import type { ApiServer } from '../server.ts'
import type { ResourceParts } from './parts.ts'
import { load, lockServer, Server } from './servers.ts'

const CONSOLE_SECONDS = 900

interface Extras {
  readonly imageId?: string
  readonly consoleToken?: string
}
/** The server after an action, and what the response shows besides it. */
interface Done {
  readonly member: Static<typeof Server>
  readonly extras: Extras
}

/** Adds the routes. */
export function addServerActionRoutes(server: ApiServer, { accounts, site, compute }: ResourceParts): void {
  const act = async (change: Change, accountId: string, id: string, action: ServerAction): Promise<Done | Refusal> => {
    const current = await lockServer(change, accountId, id)
    if (isRefusal(current)) return current
    const status = await expectedStatus(change, current)
    if (!isPossible(action, status))
      return refuse(
        'resource_conflict',
        `${id} is ${status}${status === current.status ? '' : ' once the actions that wait are done'}: ${action} is not possible`,
      )
    const refusal =
      (await refuseBeyondOpenActions(change, accountId, id)) ??
      (action === 'snapshot' ? await refuseBeyondLimit(change, accountId, 'images_limit') : undefined)
    if (refusal !== undefined) return refusal
    const extras: Extras = {
      ...(action === 'snapshot' && { imageId: await createSnapshot(change, current) }),
      ...(action === 'activate_console' && { consoleToken: await openConsole(change, id) }),
    }
    await requestAction(change, compute, id, { kind: action, ...extras })
    const member = await load(change, site, accountId, id)
    return isRefusal(member) ? member : { member, extras }
  }
  for (const action of SERVER_ACTIONS) {
    server.post(
      `/servers/:id/${action}`,
      {
        schema: {
          summary: ACTION_RULES[action].does,
          tags: ['Servers'],
          params: Type.Object({ id: Type.String() }),
          response: { 202: Server },
        },
      },
      async ({ caller, params }, reply) => {
        const done = await accounts.commit(caller, (change) => act(change, caller.accountId, params.id, action))
        if (isRefusal(done)) return reply.refuse(done)
        const {
          member,
          extras: { imageId, consoleToken },
        } = done
        if (imageId !== undefined) void reply.header('Link', `<${site.baseUrl}/1.0/images/${imageId}>; rel=snapshot`)
        return reply.respond(202, consoleToken === undefined ? member : { ...member, console_token: consoleToken })
      },
    )
  }
}

/**
 * Opens the console and returns its token. The server's row has only its expiry; an action that waits has the token
 * until it is finished.
 */
async function openConsole(change: Change, id: string): Promise<string> {
  await change
    .updateTable('servers')
    .set({ console_token_expires: new Date(Date.now() + CONSOLE_SECONDS * 1000) })
    .where('id', '=', id)
    .execute()
  return newToken()
}
