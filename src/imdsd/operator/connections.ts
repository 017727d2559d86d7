/**
 * Bounds the connections of the operators' TCP listener, so that they take no file descriptors of guests, and no caller
 * keeps others out.
 *
 * A connection from an address outside of the list of networks is reset before anything of it is read. A connection
 * beyond a bound is accepted, and the oldest one is closed in its place: of its address, or of the address that has the
 * most. So Prometheus is served while others hold connections.
 */
import type { Socket } from 'node:net'
import type { Log } from '../../runtime/log-codes.ts'
import { ByOwner } from '../../limits/by-owner.ts'

/** What the bounds depend on. `now`: milliseconds of a monotonic clock. */
interface AdmissionParts {
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

/** Builds what counts a new connection, or resets it. */
export function buildAdmission({
  isAllowed,
  maxConnections,
  now,
  log,
}: AdmissionParts): (socket: OperatorConnection) => void {
  /** By address: what closes each. */
  const open = new ByOwner<() => void>()
  let refused = 0
  let loggedAtMs = -Infinity

  const closeOldest = (address: string) => open.of(address)[0]?.()
  const logRefused = (address: string) => {
    refused += 1
    if (now() - loggedAtMs < QUIET_MS) return
    loggedAtMs = now()
    log.warn(
      { code: 'operator-not-allowed', address, connections: refused },
      "the operators' listener closes connections from addresses outside of IMDS_OPERATOR_ALLOW: " +
        'add the network if it should read metrics',
    )
    refused = 0
  }
  return (socket) => {
    const address = socket.remoteAddress
    if (address === undefined || !isAllowed(address)) {
      // undefined: already reset by the peer
      if (address !== undefined) logRefused(address)
      socket.resetAndDestroy()
      return
    }
    const count = (owner: string) => open.countOf(owner)
    if (count(address) >= MAX_PER_ADDRESS) closeOldest(address)
    else if (open.size >= maxConnections)
      closeOldest(open.owners.reduce((largest, owner) => (count(owner) > count(largest) ? owner : largest), address))
    const close = () => {
      open.remove(address, close) // before its event, since more connections may arrive in this turn
      socket.destroy()
    }
    open.add(address, close)
    socket.once('close', () => open.remove(address, close))
  }
}
