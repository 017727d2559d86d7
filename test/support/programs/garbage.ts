/**
 * Collects the garbage of a daemon, for tests that measure memory in use.
 */
import { freePort } from '../redis/redis.ts'

/** How to start a daemon whose garbage can be collected. `within` hides the messages of its debugger. */
export interface Collectable { readonly env: Readonly<Record<string, string>>, readonly within: readonly string[], collect(): Promise<void> }

/** Prepares one daemon. Its standard error goes to the file `errors`. */
export async function collectable(errors = '/dev/null'): Promise<Collectable> {
  const port = await freePort()
  return {
    env: { NODE_OPTIONS: `--inspect=127.0.0.1:${String(port)} --inspect-publish-uid=http` },
    within: ['sh', '-c', `exec "$@" 2> '${errors}'`, 'sh'],
    collect: async () => {
      const [target] = await (await fetch(`http://127.0.0.1:${String(port)}/json`)).json() as [{ webSocketDebuggerUrl: string }]
      const socket = new WebSocket(target.webSocketDebuggerUrl)
      socket.onopen = () => { socket.send('{"id":1,"method":"HeapProfiler.collectGarbage"}') }
      await new Promise((resolve) => { socket.onmessage = resolve })
      socket.close()
    },
  }
}
