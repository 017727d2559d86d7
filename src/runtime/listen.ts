/**
 * How does a server get its socket, how many connections may it hold, and how does it give them back?
 */
import type { FastifyInstance } from 'fastify'
import { once } from 'node:events'
import { Server } from 'node:net'
import { formatHostPort, type HostPort } from './host-port.ts'

/** Where a server listens: a canonical address with a port (0: any free one), or a socket that systemd holds for us. */
export type Listener = { readonly host: string, readonly port: number } | { readonly fd: number }
/** The service cannot start, for a reason that its message gives together with the variable or the remedy: a stack trace adds nothing. */
export class StartFailure extends Error {}

/** File descriptors that guests' connections leave: Node itself and a daemon at rest have some 30 of them open. */
const RESERVED = 128
/** So many connections may wait to be accepted, as in systemd/imds.socket: listening on an inherited socket sets it anew. */
const BACKLOG = 4_096
/**
 * On a stop, a connection without a request under way stays so long, in ms: its request may be on its way. AWS's clients wait a second
 * for an answer, and the next daemon needs the rest of it to start.
 */
const IDLE_MS = 250
/** On a stop, everything ends after so long, in ms. The longest answer is a question to the store about an unknown address: 1 s. */
const FAREWELL_MS = 1_500

/**
 * How many connections each of so many guest listeners may hold, given the text of /proc/self/limits (empty: the system does not say).
 * RESERVED descriptors stay for everything else. Without a bound, guests that open connections without end would take what the store,
 * the snapshot, operators and the word to systemd's watchdog need, and Node closes what it cannot accept without telling anyone.
 */
export function maxConnections(limits: string, listeners: number): number {
  const [, most] = /^Max open files +(\d+)/m.exec(limits) ?? []
  return most === undefined ? Infinity : Math.max(1, Math.floor(Math.max(Number(most) - RESERVED, Number(most) / 2) / listeners))
}

/** Lets a server listen. Rejects with a StartFailure that names the variable and the remedy. */
export async function listen(server: FastifyInstance, listener: Listener, variable: string): Promise<HostPort> {
  server.addHook('preClose', () => drain(server.server))
  try {
    await server.ready()
    server.server.listen(listener, BACKLOG) // not Fastify's own listen: for a file descriptor it cannot say the backlog
    await once(server.server, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const where = 'fd' in listener ? `the socket from systemd (file descriptor ${String(listener.fd)})` : formatHostPort(listener)
    throw new StartFailure(`${variable}: cannot listen on ${where}: ${remedy(code, variable) ?? String(error)}`, { cause: error })
  }
  const address = server.server.address()
  return typeof address === 'object' && address !== null ? { host: address.address, port: address.port } : { host: '', port: 0 }
}

/**
 * Stops accepting and gives every connection time to ask what it was opened for, for a bounded time. Answers say `Connection: close`
 * from now on, which is Fastify's doing. Not http.Server's own close first: it ends each connection whose request it has not read, and
 * a guest that has just connected would be reset.
 */
async function drain(server: FastifyInstance['server']): Promise<void> {
  if (!server.listening) return
  const drained = once(server, 'close')
  Server.prototype.close.call(server)
  const idle = setInterval(() => { server.closeIdleConnections() }, IDLE_MS)
  const end = setTimeout(() => { server.closeAllConnections() }, FAREWELL_MS)
  await drained
  clearInterval(idle)
  clearTimeout(end)
}

function remedy(code: string | undefined, variable: string): string | undefined {
  switch (code) {
    case 'EADDRNOTAVAIL': return variable === 'IMDS_LISTEN'
      ? 'this host does not have the address; systemd/imds-address.service puts it there'
      : 'no interface of this host has the address: correct it, or leave it out for 127.0.0.1:9169'
    case 'EADDRINUSE': return 'something else listens there already'
    case 'EACCES': return 'a port below 1024 needs CAP_NET_BIND_SERVICE'
    default: return undefined
  }
}
