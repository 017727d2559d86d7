/**
 * Every key and channel of a region in Redis. docs/redis-layout.md has their types, values, writers and lifetimes;
 * publish.lua builds the same names. One hash tag holds a region, so one shard has all of it and one script can change
 * it atomically.
 */

/** How long an announcement lasts, in seconds. */
export const ANNOUNCEMENT_SECONDS = 30 * 24 * 3600

const namesBelow = (base: string) =>
  Object.freeze({
    region: base,
    /** The last place in the order of the region. */
    order: `${base}:order`,
    /** The mark that the region has lost changes (../order.ts). */
    behind: `${base}:behind`,
    encrypted: `${base}:encrypted`,
    instances: `${base}:instances`,
    instance: (id: string) => `${base}:instance:${id}`,
    tombstone: (id: string) => `${base}:tombstone:${id}`,
    hypervisor: (name: string) => `${base}:hypervisor:${name}`,
    announcement: (hypervisor: string) => `${base}:announcement:${hypervisor}`,
    /** At most MAX_REPORTS_VALUE_BYTES are read. */
    reports: (hypervisor: string, id: string) => `${base}:reports:${hypervisor}:${id}`,
    drained: `${base}:drained`,
    api: `${base}:api`,
    database: `${base}:database`,
    complete: `${base}:complete`,
    /** The last numbers that the sequences of the database have given. */
    numbers: `${base}:numbers`,
    addresses: (network: string) => `${base}:addresses:${network}`,
    /**
     * `DIGITS ID` (digits: `ipv6Digits`). A range inside another of the same owner is left out, so no two overlap, and
     * the range that contains an address is the last member that does not sort after it.
     */
    ranges: (network: string) => `${base}:ranges:${network}`,
    notices: (hypervisor: string) => `${base}:notices:${hypervisor}`,
  })
export type Keys = ReturnType<typeof namesBelow>

/** The names of a region. `region` is one word: letters, digits, `.`, `_` and `-`. */
export function keysOf(region: string): Keys {
  return namesBelow(`imds:{${region}}`)
}
