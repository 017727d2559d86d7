/**
 * Bounds the connections of the operators' TCP listener, so that they take no file descriptors of guests, and no caller
 * keeps others out.
 *
 * A connection from an address outside of the list of networks is reset before anything of it is read. A connection
 * beyond a bound is accepted, and the oldest one is closed in its place: of its address, or of the address that has the
 * most. So Prometheus is served while others hold connections.
 */
import type { Server, Socket } from 'node:net'
import type { Log } from '../../runtime/log-codes.ts'
import { ByOwner } from '../../limits/by-owner.ts'

/** What the bounds depend on. `now`: milliseconds of a monotonic clock. */
export interface OperatorConnectionsParts {
  readonly isAllowed: (address: string) => boolean
  /** Of all addresses together. */
  readonly maxConnections: number
  readonly now: () => number
  readonly log: Pick<Log, 'warn'>
}

export const MAX_PER_ADDRESS = 16
/** The shortest time between two lines about connections that were refused, in ms. */
const QUIET_MS = 60_000

/** A connection; tests pass other objects. */
export type OperatorConnection = Pick<Socket, 'remoteAddress' | 'destroy' | 'resetAndDestroy' | 'once'>

export class OperatorConnections {
  readonly #parts: OperatorConnectionsParts
  /** By address: what closes each. */
  readonly #open = new ByOwner<() => void>()
  #refused = 0
  #loggedAtMs = -Infinity

  constructor(parts: OperatorConnectionsParts) {
    this.#parts = parts
  }

  /** Begins to bound the connections of a server. */
  start(server: Server): void {
    server.on('connection', (socket: Socket) => this.admit(socket))
  }

  /** Counts a new connection, or resets it. */
  admit(socket: OperatorConnection): void {
    const { isAllowed, maxConnections } = this.#parts
    const address = socket.remoteAddress
    if (address === undefined || !isAllowed(address)) {
      // undefined: already reset by the peer
      if (address !== undefined) this.#logRefused(address)
      socket.resetAndDestroy()
      return
    }
    const count = (one: string) => this.#open.countOf(one)
    if (count(address) >= MAX_PER_ADDRESS) this.#closeOldest(address)
    else if (this.#open.size >= maxConnections)
      this.#closeOldest(
        this.#open.owners.reduce((largest, one) => (count(one) > count(largest) ? one : largest), address),
      )
    const close = () => {
      this.#open.remove(address, close) // before its event, since more connections may arrive in this turn
      socket.destroy()
    }
    this.#open.add(address, close)
    socket.once('close', () => this.#open.remove(address, close))
  }

  #closeOldest(address: string): void {
    this.#open.of(address)[0]?.()
  }

  #logRefused(address: string): void {
    const { now, log } = this.#parts
    this.#refused += 1
    if (now() - this.#loggedAtMs < QUIET_MS) return
    this.#loggedAtMs = now()
    log.warn(
      { code: 'operator-not-allowed', address, connections: this.#refused },
      "the operators' listener closes connections from addresses outside of IMDS_OPERATOR_ALLOW: " +
        'add the network if it should read metrics',
    )
    this.#refused = 0
  }
}
