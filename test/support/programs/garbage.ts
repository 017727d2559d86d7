/** Forces a garbage collection in a daemon, for tests that measure memory in use. */
import { freePort } from '../redis/redis.ts'

/**
 * The environment of a daemon whose garbage can be collected, and the command that runs it: it redirects the debugger's
 * messages.
 */
export interface Collectable {
  readonly env: Readonly<Record<string, string>>
  readonly within: readonly string[]
  collect(): Promise<void>
}

/** Prepares one daemon, whose standard error goes to the file `errors`. */
export async function collectable(errors = '/dev/null'): Promise<Collectable> {
  const port = await freePort()
  return {
    env: { NODE_OPTIONS: `--inspect=127.0.0.1:${port} --inspect-publish-uid=http` },
    within: ['sh', '-c', `exec "$@" 2> '${errors}'`, 'sh'],
    collect: async () => {
      const [target] = (await (await fetch(`http://127.0.0.1:${port}/json`)).json()) as [
        { webSocketDebuggerUrl: string },
      ]
      const socket = new WebSocket(target.webSocketDebuggerUrl)
      socket.onopen = () => socket.send('{"id":1,"method":"HeapProfiler.collectGarbage"}')
      await new Promise((resolve) => {
        socket.onmessage = resolve
      })
      socket.close()
    },
  }
}
