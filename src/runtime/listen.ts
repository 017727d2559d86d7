/** Opens a server's socket, bounds its connections, and closes them gracefully. */
import type { FastifyInstance } from 'fastify'
import { once } from 'node:events'
import { Server } from 'node:net'
import { formatHostPort, type HostPort } from './host-port.ts'

/** Where a server listens: a canonical address with a port (0: any free one), or a socket that systemd passed to us. */
export type Listener = { readonly host: string, readonly port: number, readonly fd?: undefined } | { readonly fd: number }
/** The service cannot start. The message names the variable and the remedy, so the log needs no stack trace. */
export class StartFailure extends Error {}

/** File descriptors that connections of guests may not use. An idle daemon has about 30 open. */
const RESERVED = 128
/** Connections that may wait to be accepted. The same as in systemd/imds.socket, since listening on an inherited socket sets it again. */
const BACKLOG = 4_096
/**
 * During a stop, an idle connection stays open this long, in ms, because its request may be in flight. AWS's clients wait a second for a
 * response; the next daemon needs the rest of that time to start.
 */
const IDLE_GRACE_MS = 250
/** During a stop, all connections are closed after this time, in ms. The longest answer waits 1 s for the store, for an unknown peer. */
const STOP_TIMEOUT_MS = 1_500

/**
 * The most connections of one guest listener, given the text of /proc/self/limits (empty where the system has none) and the number of
 * listeners. RESERVED descriptors stay for the store, the snapshot, operators and systemd's watchdog. Without this bound guests could use up
 * all descriptors, and Node closes a connection that it cannot accept without reporting it.
 */
export function maxConnections(limits: string, listeners: number): number {
  const [, most] = /^Max open files +(\d+)/m.exec(limits) ?? []
  return most === undefined ? Infinity : Math.max(1, Math.floor(Math.max(Number(most) - RESERVED, Number(most) / 2) / listeners))
}

/** Starts listening. Rejects with a StartFailure that names the variable and the remedy. */
export async function listen(server: FastifyInstance, listener: Listener, variable: string): Promise<HostPort> {
  server.addHook('preClose', () => drain(server.server))
  try {
    await server.ready()
    server.server.listen(listener, BACKLOG) // not Fastify's listen: it cannot set the backlog of a file descriptor
    await once(server.server, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const where = listener.fd === undefined ? formatHostPort(listener) : `the socket from systemd (file descriptor ${String(listener.fd)})`
    throw new StartFailure(`${variable}: cannot listen on ${where}: ${remedy(code, variable) ?? String(error)}`, { cause: error })
  }
  const address = server.server.address()
  return address && typeof address === 'object' ? { host: address.address, port: address.port } : { host: '', port: 0 }
}

/**
 * Stops accepting, and gives open connections a bounded time for their request. Fastify adds `Connection: close` to answers from now on.
 * http.Server's own close is not called first: it closes connections whose request it has not read, so a guest that has just connected
 * would be reset.
 */
async function drain(server: FastifyInstance['server']): Promise<void> {
  if (!server.listening) return
  const drained = once(server, 'close')
  Server.prototype.close.call(server)
  const idle = setInterval(() => { server.closeIdleConnections() }, IDLE_GRACE_MS)
  const end = setTimeout(() => { server.closeAllConnections() }, STOP_TIMEOUT_MS)
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
