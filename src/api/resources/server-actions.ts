/** The actions on servers. model/server-actions.ts says in which state each is possible. */
import Type, { type Static } from 'typebox'
import { newToken } from '../auth/secrets.ts'
import { expectedStatus, refuseBeyondOpenActions, requestAction } from '../changes/actions.ts'
import { createSnapshot } from '../changes/images.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Tx } from '../database/transaction.ts'
import { ACTION_RULES, isPossible, SERVER_ACTIONS, type ServerAction } from '../model/server-actions.ts'
import { refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
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
  const act = async (tx: Tx, accountId: string, id: string, action: ServerAction): Promise<Done> => {
    const current = await lockServer(tx, accountId, id)
    const status = await expectedStatus(tx, current)
    if (!isPossible(action, status))
      throw refuse(
        'resource_conflict',
        `${id} is ${status}${status === current.status ? '' : ' once the actions that wait are done'}: ${action} is not possible`,
      )
    await refuseBeyondOpenActions(tx, accountId, id)
    if (action === 'snapshot') await refuseBeyondLimit(tx, accountId, 'images_limit')
    const extras: Extras = {
      ...(action === 'snapshot' && { imageId: await createSnapshot(tx, current) }),
      ...(action === 'activate_console' && { consoleToken: await openConsole(tx, id) }),
    }
    await requestAction(tx, compute, id, { kind: action, ...extras })
    const member = await load(tx, site, accountId, id)
    return { member, extras }
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
        const { member, extras } = await accounts.commit(caller, (tx) => act(tx, caller.accountId, params.id, action))
        const { imageId, consoleToken } = extras
        if (imageId !== undefined) void reply.header('Link', `<${site.baseUrl}/1.0/images/${imageId}>; rel=snapshot`)
        return reply.code(202).send(consoleToken === undefined ? member : { ...member, console_token: consoleToken })
      },
    )
  }
}

/**
 * Opens the console and returns its token. The server's row has only its expiry; an action that waits has the token
 * until it is finished.
 */
async function openConsole(tx: Tx, id: string): Promise<string> {
  await tx
    .updateTable('servers')
    .set({ console_token_expires: new Date(Date.now() + CONSOLE_SECONDS * 1000) })
    .where('id', '=', id)
    .execute()
  return newToken()
}
