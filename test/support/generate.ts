/**
 * Records by the hundred: valid, each with another mixture of what a record may have or lack. The same seed gives the same record.
 */
import { anInstance } from './instance.ts'

/** A small generator of pseudo-random numbers (mulberry32): repeatable, for tests only. */
export function random(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

/** A valid record made from a seed. */
export function generateRecord(seed: number): Record<string, unknown> {
  const next = random(seed)
  const some = (most: number) => Math.floor(next() * (most + 1))
  const maybe = () => next() < 0.5
  const word = () => Math.floor(next() * 36 ** 5).toString(36).padStart(5, '0')
  const list = <T>(most: number, make: (i: number) => T): T[] => Array.from({ length: some(most) }, (_, i) => make(i))
  const host = seed % 200

  const nic = (n: number) => ({
    id: `int-${word()}${String(n)}`,
    macAddress: `02:24:19:00:${(seed & 255).toString(16).padStart(2, '0')}:${n.toString(16).padStart(2, '0')}`,
    ipv4Addresses: [...maybe() || n === 0 ? [`10.${String(n)}.${String(host)}.2/24`] : [], ...list(2, (i) => `10.${String(n)}.${String(host)}.${String(10 + i)}${maybe() ? '/24' : ''}`)],
    ipv6Addresses: list(2, (i) => `fd00:${(n + 1).toString(16)}::${(i + 1).toString(16)}${maybe() ? '/64' : ''}`),
    dhcpv6: maybe(),
    cloudIps: list(2, (i) => ({ id: `cip-${word()}`, publicIpv4: `198.51.${String(n)}.${String(10 + i)}`, fqdn: `cip-${word()}.example.com` })),
  })
  return anInstance({
    id: `srv-${word()}`,
    fqdn: `srv-${word()}.gb1.example.com`,
    interfaces: Array.from({ length: 1 + some(3) }, (_, n) => nic(n)),
    serverGroups: list(3, (i) => ({ id: `grp-${word()}`, name: `group ${String(i)}` })),
    publicKeys: list(3, (i) => ({ user: `usr-${word()}${String(i)}`, key: `ssh-ed25519 AAAA${word()} user${String(i)}` })),
    tags: Object.fromEntries(list(6, () => [['Name', 'a.b', 'with space', '5=x', 'a/b', '_index', 'ü', word(), '@', ''][some(9)], maybe() ? word() : ''])),
    blockDevices: Object.fromEntries(['ami', 'root', 'swap', 'ebs1', 'ebs2', 'ephemeral0'].filter(maybe).map((name) => [name, 'sda'])),
    options: maybe() ? { instanceMetadataTags: maybe() ? 'enabled' : 'disabled' } : {},
  })
}
