/**
 * The hop limit of session tokens (contract D6): the response to a token PUT travels at most `httpPutResponseHopLimit`
 * hops. The daemon marks its packets, and the firewall limits the marked ones.
 *
 * The guarantee, together with the `hop_N` chains of imdsd/firewall/base-rules.ts: no packet with a byte of a session token
 * leaves this hypervisor with a larger TTL (IPv6: hop limit) than the instance allows. The mark is the DSCP of the
 * socket. It is set before a token is minted; from then on the kernel writes it into every packet of the connection,
 * retransmissions included. The firewall sets the TTL of marked packets and clears the mark. The mark does not depend
 * on the segments that the guest sends, so their splits, overlaps and order do not matter.
 */
import type { Socket } from 'node:net'

/**
 * The mark: a DSCP of pool 2 (xxxx11), which is for local use (RFC 2474, 6). The firewall clears it on every packet
 * that leaves.
 */
export const LIMITED_DSCP = 0x0b

/**
 * Marks all further packets of a connection. False if that fails: no token may be minted then.
 *
 * There is no guarantee for IPv4 connections to an IPv6 listener (`::`), where Node marks IPv6 packets only. The
 * firewall cannot protect such a listener anyway (`isOneAddress`).
 */
export function limitHops(connection: Socket): boolean {
  try {
    connection.setTypeOfService(LIMITED_DSCP << 2) // the lowest two bits are ECN's, which the kernel keeps
    return true
  } catch {
    return false
  }
}
