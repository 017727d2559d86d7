/** Opens the sockets of a server, bounds its connections, and closes them gracefully. */
import type { FastifyInstance } from 'fastify'
import { once } from 'node:events'
import { chmodSync, existsSync, lstatSync, readFileSync, statSync, unlinkSync } from 'node:fs'
import { connect, Server, type Socket } from 'node:net'
import { dirname } from 'node:path'
import { formatListenAddress, type HostPort, type ListenAddress } from './host-port.ts'

/**
 * Where to listen: a canonical address with a port (0: any free one), a unix socket, or a socket that systemd passed to
 * this process.
 */
export type Listener =
  | (ListenAddress & { readonly fd?: undefined })
  | { readonly fd: number; readonly path?: undefined }
/** The service cannot start. The message names the variable and the remedy, so the log needs no stack trace. */
export class StartFailure extends Error {}

/** The file that shows how many file descriptors this process may open. */
const LIMITS_FILE = '/proc/self/limits'
/**
 * File descriptors that connections of guests may not use: those of operators, and 128 for the rest. An idle daemon has
 * about 30 open.
 */
const RESERVED_DESCRIPTORS = 256
/** The most connections of each of the operators' two listeners. */
const MAX_OPERATOR_CONNECTIONS = 64
/**
 * Connections that may wait to be accepted. The same as in systemd/imds.socket, since listening on an inherited socket
 * sets it again.
 */
const BACKLOG = 4_096
/**
 * How many sockets `listenAt` opens at an address (SO_REUSEPORT). libuv accepts one connection of a socket in each turn
 * of the event loop, so with one socket, new connections of a busy server waited for seconds.
 */
const SOCKETS_PER_ADDRESS = 64
/**
 * During a stop, an idle connection stays open this long, in ms, because its request may be in flight. AWS's clients
 * wait a second for a response; the next daemon needs the rest of that time to start.
 */
const IDLE_GRACE_MS = 250
/**
 * During a stop, connections are ended after this time, in ms. The slowest response of the daemon waits 1 s for the
 * store: that to an unknown peer.
 */
const STOP_TIMEOUT_MS = 1_500
/** Of a unix socket: its owner and its group may connect. */
const SOCKET_MODE = 0o660

/** The text of /proc/self/limits; empty if the system has none. */
export function readLimits(): string {
  return existsSync(LIMITS_FILE) ? readFileSync(LIMITS_FILE, 'utf8') : ''
}

/**
 * The most connections of one guest listener, given the text of /proc/self/limits and the number of listeners.
 * RESERVED_DESCRIPTORS stay for the store, the journal, operators and systemd's watchdog. Without this bound guests
 * could use up all descriptors, and Node closes a connection that it cannot accept without reporting it.
 */
export function maxConnections(limits: string, listeners: number): number {
  const most = descriptors(limits)
  return Math.max(1, Math.floor(Math.max(most - RESERVED_DESCRIPTORS, most / 2) / listeners))
}

/**
 * The most connections of each of the operators' two listeners: they take a quarter of the descriptors at most, guests
 * at least a half, and the rest stays for the daemon itself.
 */
export function maxOperatorConnections(limits: string): number {
  return Math.max(1, Math.min(MAX_OPERATOR_CONNECTIONS, Math.floor(descriptors(limits) / 8)))
}

/** The number of descriptors that a process may open, given the text of /proc/self/limits. */
export function descriptors(limits: string): number {
  const [, most] = /^Max open files +(\d+)/m.exec(limits) ?? []
  return most === undefined ? Infinity : Number(most)
}

/** Starts listening. Rejects with a StartFailure that names the variable and the remedy. */
export async function listen(server: FastifyInstance, listener: Listener, variable: string): Promise<HostPort> {
  const place = await (await opener(server, listener, variable))()
  return place.path === undefined ? place : { host: '', port: 0 }
}

/**
 * Starts listening at several places, for many new connections at once. Rejects as `listen` does; `server.close` closes
 * what is open then. `endLate` is called during a stop, to end connections whose requests take long.
 */
export async function listenAt(
  server: FastifyInstance,
  places: readonly ListenAddress[],
  variable: string,
  endLate: () => void,
): Promise<ListenAddress[]> {
  const acceptors = places.map(({ path }, i) =>
    Array.from({ length: path === undefined ? SOCKETS_PER_ADDRESS : 1 }, (_socket, j) =>
      i === 0 && j === 0 ? server.server : acceptorFor(server.server),
    ),
  )
  await prepare(server, acceptors.flat(), endLate)
  const opened: ListenAddress[] = []
  for (const [i, place] of places.entries()) opened.push(await openAll(acceptors[i]!, place, variable))
  return opened
}

/** Returns a function that starts listening. It rejects as `listen` does, and may be called again then. */
export async function opener(
  server: FastifyInstance,
  listener: Listener,
  variable: string,
): Promise<() => Promise<ListenAddress>> {
  await prepare(server, [server.server], () => server.server.closeAllConnections())
  return () => open(server.server, listener, variable)
}

async function prepare(server: FastifyInstance, acceptors: readonly Server[], endLate: () => void): Promise<void> {
  server.addHook('preClose', () => drain(server.server, acceptors, endLate))
  server.server.prependListener('connection', endWithoutAddress)
  await server.ready()
}

/**
 * Ends a connection from a link-local address whose link was deleted before the connection was accepted. Node looks up
 * the link's name when the address is first read, and throws without it. After this, Node knows the address, or there
 * is none, as after a reset.
 */
function endWithoutAddress(socket: Socket): void {
  try {
    Reflect.get(socket, 'remoteAddress')
  } catch {
    socket.destroy()
  }
}

/** Accepts connections for an HTTP server at one more place. */
function acceptorFor(server: FastifyInstance['server']): Server {
  return new Server({ allowHalfOpen: true, noDelay: true }, (socket) => {
    server.emit('connection', socket)
  }) // the options of http.Server
}

async function openAll(acceptors: readonly Server[], place: ListenAddress, variable: string): Promise<ListenAddress> {
  if (place.path !== undefined) return open(acceptors[0]!, place, variable)
  // sockets that share a port do not notice that another process of this user listens there
  const alone = new Server()
  const opened = await open(alone, place, variable)
  await new Promise((resolve) => alone.close(resolve))
  for (const acceptor of acceptors) await open(acceptor, opened, variable, true)
  return opened
}

async function open(acceptor: Server, listener: Listener, variable: string, reusePort = false): Promise<ListenAddress> {
  try {
    if (listener.path !== undefined) await removeLeftSocket(listener.path)
    // the backlog is no option here, nor is this Fastify's listen: neither has an effect on a file descriptor
    acceptor.listen({ ...listener, reusePort }, BACKLOG)
    await once(acceptor, 'listening')
    if (listener.path !== undefined) chmodSync(listener.path, SOCKET_MODE)
  } catch (error) {
    if (acceptor.listening) Server.prototype.close.call(acceptor)
    const { code } = error as NodeJS.ErrnoException
    const where =
      listener.fd === undefined
        ? formatListenAddress(listener)
        : `the socket from systemd (file descriptor ${listener.fd})`
    const reason = remedy(code, variable, listener.path !== undefined) ?? (error as Error).message
    throw new StartFailure(`${variable}: cannot listen on ${where}: ${reason}`, { cause: error })
  }
  const address = acceptor.address()
  if (typeof address === 'string') return { path: address }
  return address ? { host: address.address, port: address.port } : { host: '', port: 0 }
}

/**
 * Removes a socket on which nothing listens: a process that was killed has left it. One that this user may not connect
 * to, such as that of a daemon that ran as root, is removed from a directory of this user.
 */
async function removeLeftSocket(path: string): Promise<void> {
  const file = lstatSync(path, { throwIfNoEntry: false })
  if (file === undefined) return
  if (!file.isSocket()) throw new Error('a file that is no socket has this name: remove it, or choose another name')
  const client = connect(path)
  const code = await new Promise<string | undefined>((resolve) => {
    client.once('connect', () => resolve(undefined))
    client.once('error', (error: NodeJS.ErrnoException) => resolve(error.code))
  })
  client.destroy()
  if (code === 'ECONNREFUSED' || (code === 'EACCES' && statSync(dirname(path)).uid === process.geteuid?.()))
    unlinkSync(path)
}

/**
 * Stops accepting, and gives open connections a bounded time for their request. Fastify adds `Connection: close` to
 * responses from now on. http.Server's own close is not called first: it closes connections whose request it has not
 * read, so a guest that has just connected would be reset.
 */
async function drain(
  server: FastifyInstance['server'],
  acceptors: readonly Server[],
  endLate: () => void,
): Promise<void> {
  const open = acceptors.filter(({ listening }) => listening)
  if (open.length === 0) return
  const drained = Promise.all(open.map((acceptor) => once(acceptor, 'close')))
  for (const acceptor of open) Server.prototype.close.call(acceptor)
  const idle = setInterval(() => server.closeIdleConnections(), IDLE_GRACE_MS)
  const end = setTimeout(endLate, STOP_TIMEOUT_MS)
  await drained
  clearInterval(idle)
  clearTimeout(end)
}

function remedy(code: string | undefined, variable: string, isUnix: boolean): string | undefined {
  switch (code) {
    case 'EADDRNOTAVAIL':
      return variable === 'IMDS_LISTEN'
        ? 'this hypervisor does not have the address; imds-address.service adds it'
        : `no interface of this machine has the address: correct it, or unset ${variable} to use its default`
    case 'EADDRINUSE':
      return `another program listens there already: end it, or correct ${variable}`
    case 'EROFS':
      return 'its directory must exist and be writable, and its file system is read-only'
    case 'EACCES':
      return isUnix
        ? 'its directory must exist, and this user must be able to write to it'
        : 'a port below 1024 needs CAP_NET_BIND_SERVICE'
    default:
      return undefined
  }
}
