/**
 * `imdsctl republish`: publishes a whole region again, after its store has lost changes. All gets a later place in the
 * order than any hypervisor has seen, also what has not changed. Then the mark "behind" is cleared.
 *
 * The records come from files, as those of `put`: the store then has exactly them. Or they are what the store has now
 * (`--as-is`): what it has lost stays lost.
 */
import { forEachOf } from '../limits/for-each-of.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Publisher } from '../store/publisher.ts'
import { MAX_IN_FLIGHT, withStore, type Context } from './commands.ts'
import { publishRecords } from './put.ts'
import { readRecords, type ReadRecord } from './records.ts'
import { CommandReport } from './report.ts'

/** How many instances are named. */
const MAX_NAMED = 10

/** Resolves with the exit status. The mark stays unless everything was published. */
export async function republishRegion(
  { store, output }: Context,
  paths: readonly string[],
  { asIs = false }: { readonly asIs?: boolean },
): Promise<number> {
  if (asIs === paths.length > 0)
    throw new CommandFailure(EXIT.usage, 'name all records of the region, or use --as-is for what the store has now')
  const report = new CommandReport(output, 'record', 'failures')
  return withStore(store, async (publisher) => {
    const { behind } = await publisher.fleet.state()
    const named = new Set<string>()
    await publishRecords({
      publisher,
      records: noting(named, asIs ? storedRecords(publisher) : readRecords(paths)),
      otherwise: 'none',
      report,
    })
    const tombstones = asIs ? await publisher.tombstones() : []
    await forEachOf(
      tombstones,
      ({ id, revision }) => publisher.remove(id, revision).then(() => undefined),
      MAX_IN_FLIGHT,
    )
    const others = (await publisher.list()).map(({ id }) => id).filter((id) => !named.has(id))
    if (others.length > 0)
      report.add(
        new CommandFailure(
          EXIT.refused,
          `the store also has ${others.length} instances that the records do not name, such as ` +
            `${others.slice(0, MAX_NAMED).join(', ')}: remove them (imdsctl remove), and run this again`,
          { others: others.slice(0, MAX_NAMED) },
        ),
      )
    const status = report.end()
    if (status === EXIT.done && behind !== undefined) await publisher.fleet.clearBehind(behind)
    return status
  })
}

async function* storedRecords(publisher: Publisher): AsyncGenerator<ReadRecord> {
  for (const { id } of await publisher.list()) {
    const published = await publisher.get(id)
    if (published === undefined) continue
    const { document, userData } = published
    yield {
      ok: true,
      value: { place: id, document, userData: userData === undefined ? 'none' : Buffer.from(userData) },
    }
  }
}

async function* noting(ids: Set<string>, records: AsyncIterable<ReadRecord>): AsyncGenerator<ReadRecord> {
  for await (const read of records) {
    const { id } = (read.ok ? (read.value.document ?? {}) : {}) as { id?: unknown }
    if (typeof id === 'string') ids.add(id)
    yield read
  }
}
