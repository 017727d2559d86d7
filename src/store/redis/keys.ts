/**
 * Where does what stand in Redis?
 *
 * Every key and channel, with its shape, writer and reader. One hash tag holds a region, so one shard has all of it and one script
 * can change it atomically. `publish.lua` builds the same names; docs/redis-layout.md repeats them for publishers in
 * other languages.
 */

/** The names of one region. All but `hypervisors` are written by publish.lua alone. */
export interface Keys {
  /** STRING: tells a store that was ever published to from an empty or foreign one. Holds the time (Unix, seconds) of the first publish. Reader: sync. */
  readonly region: string
  /** STRING: publishers need the record keys. Holds the time (Unix, seconds) of the first encrypted value. Reader: the script. */
  readonly encrypted: string
  /**
   * HASH id -> JSON `{revision, digest, addresses, hypervisors, sealedAt}`, the last where the user-data is sealed: what the script knows of
   * each instance. Readers: the script, list.
   */
  readonly instances: string
  /**
   * HASH `record` (JSON text), `user-data` (raw bytes; absent where there is none), both encrypted where there are keys (record-cipher.ts), and
   * `digest`, over them as they stand there. Reader: sync.
   */
  readonly instance: (id: string) => string
  /** STRING: the revision at which an instance was removed, and after a space its seal where it had one; kept for 7 days. Readers: the script, watch. */
  readonly tombstone: (id: string) => string
  /** HASH id -> digest of every instance whose record names this hypervisor. Reader: sync, for its resync. */
  readonly hypervisor: (name: string) => string
  /** HASH name -> JSON `{version, instances, seenAt}` of every hypervisor whose daemon ever connected. Writer: the daemon. Reader: the publisher. */
  readonly hypervisors: string
  /** HASH IPv4 address -> id of its owner, on one network. Readers: the script, the question for an unknown peer. */
  readonly addresses: (network: string) => string
  /**
   * ZSET, all scores 0, of `DIGITS ID`: the IPv6 addresses and prefixes of one network as the digits of `ipv6Digits`, with their owner. What
   * lies inside another of the same owner is left out, so no two overlap: what contains an address is the last member that is not
   * after it. Readers: the script, the question for an unknown peer.
   */
  readonly ranges: (network: string) => string
  /** CHANNEL: ids whose record changed, one a message, for one hypervisor. Subscriber: sync. */
  readonly notices: (hypervisor: string) => string
}

/** The names of a region. `region` is one word: letters, digits, `.`, `_` and `-`. */
export function keysOf(region: string): Keys {
  const base = `imds:{${region}}`
  return Object.freeze({
    region: base,
    encrypted: `${base}:encrypted`,
    instances: `${base}:instances`,
    instance: (id: string) => `${base}:instance:${id}`,
    tombstone: (id: string) => `${base}:tombstone:${id}`,
    hypervisor: (name: string) => `${base}:hypervisor:${name}`,
    hypervisors: `${base}:hypervisors`,
    addresses: (network: string) => `${base}:addresses:${network}`,
    ranges: (network: string) => `${base}:ranges:${network}`,
    notices: (hypervisor: string) => `${base}:notices:${hypervisor}`,
  })
}
