/**
 * A listening socket that outlives the daemons that use it, like a socket of systemd. Connections wait on it while no
 * daemon runs.
 *
 * A `net.Server` would accept them, so this uses the internal function by which Node's cluster module opens sockets for
 * its workers.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'

/** A listening socket. A process that inherits `fd` can accept connections on it. */
export interface ListeningSocket {
  readonly fd: number
  close(): void
}

interface Handle {
  readonly fd: number
  close(): void
}

/** Opens a socket in a namespace. `within` is a command that runs another one there. */
export async function openListeningSocket(
  within: readonly string[],
  address: string,
  port: number,
): Promise<ListeningSocket> {
  const script = `process.send('socket', require('node:net')._createServerHandle('${address}', ${port}, 4))`
  const child = spawn(within[0]!, [...within.slice(1), process.execPath, '-e', script], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  const [, handle] = (await once(child, 'message')) as [string, Handle | undefined]
  child.disconnect()
  await once(child, 'exit')
  if (handle === undefined) throw new Error(`cannot open a socket on ${address}`)
  return {
    fd: handle.fd,
    close: () => handle.close(),
  }
}
