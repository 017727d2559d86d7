/**
 * Bounds the connections of the operators' TCP listener, so that they take no file descriptors of guests, and no caller
 * keeps others out.
 *
 * A connection from an address outside of the list of networks is reset before anything of it is read. A connection
 * beyond a bound is accepted, and the oldest one is closed in its place: of its address, or of the address that has the
 * most. So Prometheus is served while others hold connections.
 */
import type { Server, Socket } from 'node:net'
import type { Logger } from 'pino'

/** What the bounds depend on. `now`: milliseconds of a monotonic clock. */
export interface OperatorConnectionsParts {
  readonly isAllowed: (address: string) => boolean
  /** The most connections of all addresses together. */
  readonly most: number
  readonly now: () => number
  readonly log: Pick<Logger, 'warn'>
}

export const MAX_PER_ADDRESS = 16
/** The shortest time between two lines about connections that were refused, in ms. */
const QUIET_MS = 60_000

/** A connection; tests pass other objects. */
export type OperatorConnection = Pick<Socket, 'remoteAddress' | 'destroy' | 'resetAndDestroy' | 'once'>
interface Open {
  readonly socket: OperatorConnection
  readonly address: string
}

/** The open connections of one listener. */
export class OperatorConnections {
  readonly #parts: OperatorConnectionsParts
  /** The oldest first. */
  #open: readonly Open[] = []
  #refused = 0
  #loggedAtMs = -Infinity

  constructor(parts: OperatorConnectionsParts) {
    this.#parts = parts
  }

  /** Begins to bound the connections of a server. */
  start(server: Server): void {
    server.on('connection', (socket: Socket) => {
      this.admit(socket)
    })
  }

  /** Counts a new connection, or resets it. */
  admit(socket: OperatorConnection): void {
    const { isAllowed, most } = this.#parts
    const address = socket.remoteAddress
    if (address === undefined || !isAllowed(address)) {
      // undefined: already reset by the peer
      if (address !== undefined) this.#logRefused(address)
      socket.resetAndDestroy()
      return
    }
    const open = { socket, address }
    const ofAddress = this.#open.filter((one) => one.address === address)
    if (ofAddress.length >= MAX_PER_ADDRESS) this.#close(ofAddress[0])
    else if (this.#open.length >= most) this.#close(this.#oldestOfLargest())
    this.#open = [...this.#open, open]
    socket.once('close', () => {
      this.#forget(open)
    })
  }

  /** The oldest connection of the address that has the most. */
  #oldestOfLargest(): Open | undefined {
    const byAddress = [...Map.groupBy(this.#open, ({ address }) => address).values()]
    return byAddress.reduce((largest, one) => (one.length > largest.length ? one : largest), [])[0]
  }

  #close(open: Open | undefined): void {
    if (open === undefined) return
    this.#forget(open) // before its event, since more connections may arrive in this turn
    open.socket.destroy()
  }

  #forget(open: Open): void {
    this.#open = this.#open.filter((one) => one !== open)
  }

  #logRefused(address: string): void {
    const { now, log } = this.#parts
    this.#refused += 1
    if (now() - this.#loggedAtMs < QUIET_MS) return
    this.#loggedAtMs = now()
    log.warn(
      { address, connections: this.#refused },
      "the operators' listener closes connections from addresses outside of IMDS_OPERATOR_ALLOW: " +
        'add the network if it should read metrics',
    )
    this.#refused = 0
  }
}
