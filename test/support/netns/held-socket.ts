/**
 * A listening socket that outlives the daemons that use it, as systemd holds one: nobody accepts on it in between.
 *
 * A server of Node cannot listen without accepting. The cluster module holds sockets for its workers, by the function that is used here.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'

/** A bound socket. A process that inherits `fd` can listen on it. */
export interface HeldSocket { readonly fd: number, close(): void }

interface Handle { readonly fd: number, close(): void }

/** Holds a socket in a namespace. `within` is a command that runs another one there. */
export async function holdSocket(within: readonly string[], address: string, port: number): Promise<HeldSocket> {
  const script = `process.send('socket', require('node:net')._createServerHandle('${address}', ${String(port)}, 4))`
  const child = spawn(within[0]!, [...within.slice(1), process.execPath, '-e', script], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  const [, handle] = await once(child, 'message') as [string, Handle | undefined]
  child.disconnect()
  await once(child, 'exit')
  if (handle === undefined) throw new Error(`no socket can be had on ${address}`)
  return { fd: handle.fd, close: () => { handle.close() } }
}
