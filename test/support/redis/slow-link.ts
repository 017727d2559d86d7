/** A TCP forwarder that delays responses, as a distant store does. */
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'

/** A port of 127.0.0.1 that forwards to another one. */
export interface SlowLink {
  readonly port: number
  /**
   * Forwards nothing any more, and closes nothing: as a network does that loses every packet. `first`: only for the
   * open connections from this one on, in the order in which they were made.
   */
  freeze(first?: number): void
  stop(): Promise<void>
}

/** Forwards to a port of 127.0.0.1. Each chunk of a response arrives `delayMs` later. */
export async function startSlowLink(target: number, delayMs: number): Promise<SlowLink> {
  const sockets = new Set<Socket>()
  let isFrozen = false
  const server = createServer((near) => {
    const far = connect(target, '127.0.0.1')
    if (!isFrozen) near.on('data', (chunk: Buffer) => far.write(chunk))
    far.on('data', (chunk) => setTimeout(() => near.write(chunk), delayMs)) // timers with the same delay fire in order
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(socket)
      socket
        .on('error', () => undefined)
        .on('close', () => {
          sockets.delete(socket)
          other.destroy()
        })
    }
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    freeze: (first) => {
      isFrozen = first === undefined
      for (const socket of [...sockets].slice(2 * (first ?? 0))) socket.pause()
    },
    stop: async () => {
      server.close()
      for (const socket of sockets) socket.destroy()
      await once(server, 'close')
    },
  }
}
