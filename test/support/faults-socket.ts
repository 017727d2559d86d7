/**
 * Listening sockets that stay while daemons come and go, as systemd holds them: nobody accepts on them in between.
 *
 * A server of Node's cannot listen without accepting. The cluster module holds sockets for its workers; this is the function by which
 * it makes them.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import * as net from 'node:net'

/** A bound socket. Whoever inherits `fd` may listen on it. */
export interface HeldSocket { readonly fd: number, close(): void }

interface Handle { readonly fd: number, close(): void }
const { _createServerHandle: createHandle } = net as unknown as { _createServerHandle(address: string, port: number, family: 4): Handle | number }

/** Holds a socket of this machine's own network. */
export function holdSocket(address: string, port: number): HeldSocket {
  return held(createHandle(address, port, 4))
}

/** Holds a socket of a namespace. `within` is a command that runs another one there. */
export async function holdSocketWithin(within: readonly string[], address: string, port: number): Promise<HeldSocket> {
  const script = `process.send('socket', require('node:net')._createServerHandle('${address}', ${String(port)}, 4))`
  const child = spawn(within[0]!, [...within.slice(1), process.execPath, '-e', script], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  const [, handle] = await once(child, 'message') as [string, Handle | undefined]
  child.disconnect()
  await once(child, 'exit')
  return held(handle ?? -1)
}

function held(handle: Handle | number): HeldSocket {
  if (typeof handle === 'number') throw new Error(`no socket can be had: ${String(handle)}`)
  return { fd: handle.fd, close: () => { handle.close() } }
}
