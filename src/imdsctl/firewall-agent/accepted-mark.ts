/**
 * The setting of the kernel by which an accepted socket takes over the mark of its connection's first packet, as the
 * rules need it (imdsd/firewall/rules.ts). It is one for IPv4 and IPv6, and one for each network namespace.
 */
import { readFileSync, writeFileSync } from 'node:fs'

const SETTING = '/proc/sys/net/ipv4/tcp_fwmark_accept'

/**
 * Switches it on. Returns false if that was not necessary. Throws if it is off and cannot be switched on: with it off,
 * no guest would get a response.
 */
export function acceptMarks(): boolean {
  if (readFileSync(SETTING, 'utf8').trim() === '1') return false
  try {
    writeFileSync(SETTING, '1')
  } catch (error) {
    throw new Error(`net.ipv4.tcp_fwmark_accept is not 1 and cannot be set: ${(error as Error).message}`, {
      cause: error,
    })
  }
  return true
}
