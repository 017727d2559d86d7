/**
 * How far the answer to a token PUT travels (contract D6): `httpPutResponseHopLimit` hops. This side marks, the firewall limits.
 *
 * The property, which is held here and by the `hop_N` chains of firewall/base-rules.ts: no packet with a byte of a session token leaves this host
 * with a larger TTL (IPv6: hop limit) than the instance may have. The mark is the DSCP of the connection's socket. It is set before a token is
 * minted, and from then on the kernel writes it into every packet of the connection, retransmissions included. The firewall limits
 * every packet with the mark and clears it. Nothing is concluded from what the guest sends, so no cut, overlap or order of its
 * segments separates a token from the mark.
 */
import type { Socket } from 'node:net'

/** The mark: a DSCP of pool 2 (xxxx11), which is for local use (RFC 2474, 6). It is on no packet that the firewall lets out. */
export const LIMITED_DSCP = 0x0b

/**
 * Marks all that is sent on a connection from now on. False where that fails: no token may be minted then.
 *
 * On an IPv4 connection to an IPv6 listener (`::`) Node marks IPv6 packets, of which there are none. The firewall cannot keep such a listener
 * (`isOneAddress`), so nothing is promised there.
 */
export function limitHops(connection: Socket): boolean {
  try {
    connection.setTypeOfService(LIMITED_DSCP << 2) // the two bits below are ECN's, which the kernel keeps
    return true
  } catch {
    return false
  }
}
