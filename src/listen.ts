/**
 * How does a server get its socket, and how does it give it back?
 */
import type { FastifyInstance } from 'fastify'
import type { Listener } from './config.ts'

/** Where a server listens now. */
export interface Place { readonly host: string, readonly port: number }

/** On a stop, answers under way have so long to go out, in ms. The longest is a question to the store about an unknown address: 1 s. */
const FAREWELL_MS = 3_000

/** Lets a server listen. Rejects with a message that names the variable and the remedy. */
export async function listen(server: FastifyInstance, listener: Listener, variable: string): Promise<Place> {
  try {
    await server.listen({ ...listener, listenTextResolver: () => '' })
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const where = 'fd' in listener ? `the socket from systemd (file descriptor ${String(listener.fd)})` : written(listener)
    throw new Error(`${variable}: cannot listen on ${where}: ${remedy(code) ?? String(error)}`, { cause: error })
  }
  const address = server.server.address()
  return typeof address === 'object' && address !== null ? { host: address.address, port: address.port } : { host: '', port: 0 }
}

/** `10.0.0.1:80` or `[fd00::1]:80`. */
export function written({ host, port }: Place): string {
  return host.includes(':') ? `[${host}]:${String(port)}` : `${host}:${String(port)}`
}

/** Stops accepting, closes idle connections, and lets answers under way out, for a bounded time. */
export async function close(server: FastifyInstance): Promise<void> {
  const timer = setTimeout(() => { server.server.closeAllConnections() }, FAREWELL_MS)
  await server.close()
  clearTimeout(timer)
}

function remedy(code: string | undefined): string | undefined {
  switch (code) {
    case 'EADDRNOTAVAIL': return 'this host does not have the address; systemd/imds-address.service puts it there'
    case 'EADDRINUSE': return 'something else listens there already'
    case 'EACCES': return 'a port below 1024 needs CAP_NET_BIND_SERVICE'
    default: return undefined
  }
}
