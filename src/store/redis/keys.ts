/**
 * Every key and channel in Redis, with its shape, writer and readers. One hash tag holds a region, so one shard has all
 * of it and one script can change it atomically. publish.lua builds the same names, and docs/redis-layout.md lists them
 * for publishers in other languages.
 */

/** How long an announcement lasts, in seconds. */
export const ANNOUNCEMENT_SECONDS = 30 * 24 * 3600

/** The names of one region. Only publish.lua writes them, except `announcement`, `reports`, `drained`, `api`,
 * `database` and `complete`. */
export interface Keys {
  /**
   * STRING: the time (Unix, seconds) of the initialisation or the first publish. Missing: the store is empty or the
   * wrong one. Reader: sync.
   */
  readonly region: string
  /**
   * STRING: the time (Unix, seconds) of the first encrypted value. Present: publishers need the record keys. Reader:
   * the script.
   */
  readonly encrypted: string
  /**
   * HASH id -> JSON `{revision, digest, addresses, hypervisors, sealedAt}`, the last only if the user-data is sealed.
   * Readers: the script and list.
   */
  readonly instances: string
  /**
   * HASH `record` (JSON text) and `user-data` (raw bytes; absent: none), both encrypted if there are keys
   * (record-cipher.ts), and `digest` of the two as stored. Reader: sync.
   */
  readonly instance: (id: string) => string
  /**
   * STRING `REVISION` or `REVISION SEALED-AT`: an instance was removed at this revision. Expires after 7 days. Readers:
   * the script, sync.
   */
  readonly tombstone: (id: string) => string
  /** HASH id -> digest of every instance whose record names this hypervisor. Reader: sync, for its resync. */
  readonly hypervisor: (name: string) => string
  /**
   * STRING: JSON `{version, instances, lagSeconds, seenAt}` of a hypervisor's daemon. Expires after 30 days. Writer: the daemon.
   * Reader: publishers.
   */
  readonly announcement: (hypervisor: string) => string
  /**
   * HASH name -> the time (RFC 3339) since which a hypervisor is drained. Writers: imdsctl, or imds-api, where it is a
   * copy. Readers: publishers.
   */
  readonly drained: string
  /**
   * STRING: JSON `{version, seenAt}` of the imds-api that publishes this region. Expires after 30 days. Reader: imdsctl,
   * which changes nothing there that imds-api would overwrite.
   */
  readonly api: string
  /** STRING: the id of the database of imds-api whose region this is. Writer and reader: imds-api. */
  readonly database: string
  /**
   * STRING: the replication id of the Redis in which imds-api has published everything. Another one, or none: it may
   * have lost some of that. Writer and reader: imds-api.
   */
  readonly complete: string
  /**
   * STRING: what a guest has reported on a hypervisor (contract H9), as JSON (metadata/reports.ts), encrypted if there
   * are record keys. Writers: the daemon of the hypervisor, and the script when the instance moves or is removed.
   * Readers: that daemon, and publishers. At most MAX_REPORTS_VALUE_BYTES are read.
   */
  readonly reports: (hypervisor: string, id: string) => string
  /** HASH IPv4 address -> id of its owner, on one network. Readers: the script, peer lookup. */
  readonly addresses: (network: string) => string
  /**
   * ZSET of `DIGITS ID`, all scores 0: the IPv6 addresses and prefixes of one network (digits: `ipv6Digits`) with their
   * owners. A range inside another of the same owner is left out, so no two overlap, and the range that contains an
   * address is the last member that does not sort after it. Readers: the script, peer lookup.
   */
  readonly ranges: (network: string) => string
  /** CHANNEL: the notices of one hypervisor, each the id of a record that changed. Subscriber: sync. */
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
    announcement: (hypervisor: string) => `${base}:announcement:${hypervisor}`,
    reports: (hypervisor: string, id: string) => `${base}:reports:${hypervisor}:${id}`,
    drained: `${base}:drained`,
    api: `${base}:api`,
    database: `${base}:database`,
    complete: `${base}:complete`,
    addresses: (network: string) => `${base}:addresses:${network}`,
    ranges: (network: string) => `${base}:ranges:${network}`,
    notices: (hypervisor: string) => `${base}:notices:${hypervisor}`,
  })
}
