/** The actions on servers. changes/servers.ts says in which state each is possible. */
import { newToken } from '../auth/secrets.ts'
import { SERVER_EVENTS } from '../changes/servers.ts'
import { requestServerAction } from '../changes/server-requests.ts'
import { SERVER_ACTIONS, type ServerAction } from '../model/server-actions.ts'
import type { ApiServer } from '../http/server.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'
import { loadServer, Server } from './server-forms.ts'

/** What each action does. */
export const SUMMARIES: Readonly<Record<ServerAction, string>> = {
  start: 'Start a server',
  stop: 'Stop a server: its power goes off',
  shutdown: 'Shut a server down: its power button is pressed',
  reboot: 'Reboot a server: Ctrl-Alt-Delete is pressed',
  reset: 'Reset a server: its power goes off and on',
  snapshot: 'Make an image of the disk of a server',
  activate_console: 'Open the graphical console of a server for 15 minutes',
}

const OPERATION_IDS: Readonly<Record<ServerAction, string>> = {
  start: 'startServer',
  stop: 'stopServer',
  shutdown: 'shutDownServer',
  reboot: 'rebootServer',
  reset: 'resetServer',
  snapshot: 'snapshotServer',
  activate_console: 'activateConsole',
}

/** Adds the routes. */
export function addServerActionRoutes(server: ApiServer, { accounts, site, compute }: ResourceParts): void {
  for (const action of SERVER_ACTIONS) {
    server.post(
      `/servers/:id/${action}`,
      {
        schema: {
          operationId: OPERATION_IDS[action],
          summary: SUMMARIES[action],
          description: describe(action),
          ...(action === 'snapshot' && { 'x-headers': ['Link'] }),
          tags: ['Servers'],
          params: RESOURCES.server.params,
          response: { 202: Server },
        },
      },
      async ({ caller, caller: { accountId }, params: { id } }, reply) => {
        const consoleToken = action === 'activate_console' ? newToken() : undefined
        const member = await accounts.commit(caller, async (tx) => {
          const imageId = await requestServerAction(tx, compute, { accountId, id, action, consoleToken })
          if (imageId !== undefined) void reply.header('Link', `<${site.baseUrl}/1.0/images/${imageId}>; rel=snapshot`)
          const loaded = await loadServer(tx, site, accountId, id)
          return consoleToken === undefined ? loaded : { ...loaded, console_token: consoleToken }
        })
        return reply.code(202).send(member)
      },
    )
  }
}

function describe(action: ServerAction): string {
  const { from, to } = SERVER_EVENTS[action]
  const states = from.map((state) => `\`${state}\``).join(' or ')
  return `Possible while the server is ${states}, or will be after its waiting actions; else 409.${to === undefined ? '' : ` Then it is \`${to}\`.`}`
}
