/** The actions on servers. changes/servers.ts says in which state each is possible. */
import { newToken } from '../auth/secrets.ts'
import { requestServerAction } from '../changes/server-requests.ts'
import { SERVER_TRANSITIONS } from '../changes/servers.ts'
import { SERVER_ACTIONS, type ServerAction } from '../model/server-actions.ts'
import type { Members } from './kit/members.ts'
import type { ResourceParts } from './kit/parts.ts'

/** What each action does. */
const ACTIONS: Readonly<Record<ServerAction, { readonly operationId: string; readonly summary: string }>> = {
  start: { operationId: 'startServer', summary: 'Start a server' },
  stop: { operationId: 'stopServer', summary: 'Stop a server: its power goes off' },
  shutdown: { operationId: 'shutDownServer', summary: 'Shut a server down: its power button is pressed' },
  reboot: { operationId: 'rebootServer', summary: 'Reboot a server: Ctrl-Alt-Delete is pressed' },
  reset: { operationId: 'resetServer', summary: 'Reset a server: its power goes off and on' },
  snapshot: { operationId: 'snapshotServer', summary: 'Make an image of the disk of a server' },
  activate_console: {
    operationId: 'activateConsole',
    summary: 'Open the graphical console of a server for 15 minutes',
  },
}

export function addServerActions(servers: Members, { site, compute }: Pick<ResourceParts, 'site' | 'compute'>): void {
  for (const action of SERVER_ACTIONS) {
    servers.action(
      action,
      {
        ...ACTIONS[action],
        description: describe(action),
        ...(action === 'snapshot' && { 'x-headers': ['Link'] }),
        status: 202,
      },
      async ({ tx, accountId, id, reply }) => {
        const consoleToken = action === 'activate_console' ? newToken() : undefined
        const imageId = await requestServerAction(tx, compute, { accountId, id, action, consoleToken })
        if (imageId !== undefined) void reply.header('Link', `<${site.baseUrl}/1.0/images/${imageId}>; rel=snapshot`)
        return consoleToken === undefined ? undefined : { console_token: consoleToken }
      },
    )
  }
}

function describe(action: ServerAction): string {
  const { from, to } = SERVER_TRANSITIONS[action]
  const states = from.map((state) => `\`${state}\``).join(' or ')
  return `Possible while the server is ${states}, or will be after its waiting actions; else 409.${to === undefined ? '' : ` Then it is \`${to}\`.`}`
}
