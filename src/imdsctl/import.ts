/**
 * `imdsctl import`: makes a store hold what a directory in the layout of the file store holds, tombstones and seals
 * included, or the records of JSON lines. It can run again: what the store has already is unchanged.
 *
 * Tombstones come first, since they free addresses.
 */
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { isId } from '../metadata/identifiers.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { readSettingFile } from '../runtime/regular-file.ts'
import { RECORD_ENDINGS } from '../store/document.ts'
import type { Publisher } from '../store/publisher.ts'
import { parseTombstone } from '../store/seal.ts'
import { withStore, type Context } from './commands.ts'
import { publishRecords } from './put.ts'
import { readRecords, type ReadRecord } from './records.ts'
import { CommandReport, type Done } from './report.ts'

/** `changeRegion`: each record gets the region of the store. */
interface ImportOptions {
  readonly changeRegion?: boolean
}

const REMOVED = '.removed'

/** Imports a directory, a file or standard input (`-`). Resolves with the exit status, the highest of all records. */
export async function importRecords(
  { store, output }: Context,
  path: string,
  { changeRegion = false }: ImportOptions,
): Promise<number> {
  if (changeRegion && store.region === undefined)
    throw new CommandFailure(EXIT.usage, '--change-region needs the name of the region: --region, IMDS_REGION')
  const removed = await findRemoved(path)
  const report = new CommandReport(output, 'record', 'failures')
  const records = readRecords([path])
  await withStore(store, async (publisher) => {
    await report.addEach(removed, (id) => restoreTombstone(publisher, path, id))
    const published = changeRegion ? inRegion(records, store.region) : records
    await publishRecords({
      publisher,
      records: published,
      otherwise: 'none',
      report,
    })
  })
  return report.end()
}

/** The ids with a tombstone and no record in a directory; none for another path. */
async function findRemoved(path: string): Promise<readonly string[]> {
  const names = new Set(path === '-' ? [] : await readdir(path).catch(() => []))
  return [...names]
    .filter((name) => name.endsWith(REMOVED))
    .map((name) => name.slice(0, -REMOVED.length))
    .filter((id) => isId(id) && !RECORD_ENDINGS.some((ending) => names.has(id + ending)))
}

async function restoreTombstone(publisher: Publisher, directory: string, id: string): Promise<Done> {
  const place = join(directory, id + REMOVED)
  const fail = (status: number, message: string): never => {
    throw new CommandFailure(status, `${place} ${message}`, { place, id })
  }
  let text = ''
  try {
    text = readSettingFile(place).toString('latin1')
  } catch (error) {
    fail(EXIT.noInput, `cannot be read: ${(error as Error).message}`)
  }
  const tombstone = parseTombstone(text)
  if (tombstone === undefined || tombstone.revision < 1)
    return fail(EXIT.badData, 'is not a tombstone: REVISION, or REVISION and the time of the seal')
  const { revision, sealedAt } = tombstone
  const { kind } = await publisher.remove(id, revision, { sealedAt })
  if (kind === 'stale') return fail(EXIT.refused, `is of revision ${revision}, and the store has a later one`)
  return { json: { id, result: 'removed', revision }, text: `removed ${id} at revision ${revision}` }
}

async function* inRegion(records: AsyncIterable<ReadRecord>, region: string | undefined): AsyncGenerator<ReadRecord> {
  for await (const read of records) {
    if (!read.ok || typeof read.value.document !== 'object') yield read
    else yield { ok: true, value: { ...read.value, document: { ...read.value.document, region } } }
  }
}
