/** The hypervisors of the region: the row of each in the database, and its daemon's announcement in the store. */
import { inTime } from '../../limits/in-time.ts'
import { formatAgo, formatDuration } from '../../runtime/ago.ts'
import { isRecent } from '../../store/fleet.ts'
import type { AnnouncedHypervisor, Publisher } from '../../store/publisher.ts'
import { readHypervisorUsage, type HypervisorUsage } from '../changes/hypervisors.ts'
import type { Db } from '../database/transaction.ts'

/** A hypervisor. `announced` undefined: no daemon has announced it, or the store could not be read. */
export interface RegionHypervisor extends HypervisorUsage {
  readonly announced: AnnouncedHypervisor | undefined
}

/** All of them, by name. `storeProblem`: why the announcements could not be read; undefined: they were. */
export interface RegionHypervisors {
  readonly hypervisors: readonly RegionHypervisor[]
  readonly storeProblem: string | undefined
}

/** How long a page waits for the store. */
const STORE_TIMEOUT_MS = 2_000

/** Reads them. Rejects if the database does not answer. */
export async function readHypervisors(
  db: Db,
  openStore: () => Promise<Pick<Publisher, 'hypervisors'>>,
): Promise<RegionHypervisors> {
  const placed = await readHypervisorUsage(db)
  const names = placed.map(({ name }) => name)
  const reading = openStore().then((store) => store.hypervisors(names))
  const announced = await inTime(reading, STORE_TIMEOUT_MS).then(
    (all) => ({ all, problem: undefined }),
    (error: unknown) => ({ all: [], problem: (error as Error).message }),
  )
  const byName = new Map(announced.all.map((one) => [one.name, one]))
  return {
    hypervisors: placed.map((one) => ({ ...one, announced: byName.get(one.name) })),
    storeProblem: announced.problem,
  }
}

/** The columns of a list of hypervisors for people. */
export const HYPERVISOR_COLUMNS: readonly string[] =
  'hypervisor,zone,servers,free MB,of MB,drained,version,instances,lag,last seen'.split(',')

/** The cells of a hypervisor in these columns. */
export function cellsOf(
  { name, zone, servers, free, ram, drained_at, announced }: RegionHypervisor,
  nowMs: number,
): readonly string[] {
  const drained = drained_at === null ? '-' : formatAgo(drained_at.toISOString(), nowMs)
  const { version = '-', instances = '-', lagSeconds, seenAt } = announced ?? {}
  const isLagKnown = lagSeconds !== undefined && isRecent(seenAt ?? '', nowMs)
  const lag = isLagKnown ? formatDuration(lagSeconds) : '-'
  const seen = seenAt === undefined ? 'never' : formatAgo(seenAt, nowMs)
  return [name, zone, ...[servers, free, ram].map(String), drained, version, String(instances), lag, seen]
}
