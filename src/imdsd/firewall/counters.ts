/**
 * The counters of the firewall's table. The agent reads them from the kernel and reports them to the daemon, whose
 * metrics and explanations have them.
 */

/** Every counter. `admitted`: packets of guests that passed to a listener; the others were dropped or reset. */
export const COUNTERS = ['admitted', 'unknown_peers', 'too_many', 'fragments', 'strays', 'operators'] as const

/** The packets of each counter, since the hypervisor booted or the rules were removed. */
export type Packets = Readonly<Record<(typeof COUNTERS)[number], number>>

/** Parses the packets of a report; undefined if a counter is missing, or is no count. Ignores other counters. */
export function parsePackets(untrusted: unknown): Packets | undefined {
  if (!(untrusted instanceof Object)) return undefined
  const given = untrusted as Readonly<Record<string, unknown>>
  return COUNTERS.every((name) => Number.isSafeInteger(given[name]) && Number(given[name]) >= 0)
    ? (Object.fromEntries(COUNTERS.map((name) => [name, given[name]])) as Packets)
    : undefined
}

/** The packets by the names that counters have in metrics and explanations, such as `unknown-peers`. */
export function packetsByName(packets: Packets): Record<string, number> {
  return Object.fromEntries(Object.entries(packets).map(([name, count]) => [name.replaceAll('_', '-'), count]))
}
