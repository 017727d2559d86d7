/**
 * `imdsctl export`: writes what a store has into a new directory, in the layout of the file store, for a backup or
 * another region. Seals are in the records and tombstones.
 *
 * The directory appears when the export is complete: until then it is `DIR.partial`. Each instance is exported as it is
 * at one moment, but not all at the same one.
 */
import { existsSync, writeFileSync } from 'node:fs'
import { mkdir, rename, rm } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { forEachOf } from '../limits/for-each-of.ts'
import { findDistrustOfDirectory } from '../runtime/trusted-path.ts'
import { formatRecord } from '../store/document.ts'
import { StoreUnavailable, type Publisher } from '../store/publisher.ts'
import { formatTombstone } from '../store/seal.ts'
import { MAX_IN_FLIGHT, withStore, type Context } from './commands.ts'

/** Exports a store. Resolves with the exit status: faulty data if a record could not be read. */
export async function exportRecords({ store, output }: Context, path: string): Promise<number> {
  const directory = resolve(path)
  if (existsSync(directory)) throw new CommandFailure(EXIT.usage, `${directory} exists: name a new directory`)
  const partial = `${directory}.partial`
  const distrust = process.geteuid?.() === 0 ? findDistrustOfDirectory(dirname(directory)) : undefined
  if (distrust !== undefined)
    throw new CommandFailure(
      EXIT.noInput,
      `${distrust}: export into a directory that only root can change, or run as its owner`,
    )
  return withStore(store, async (publisher) => {
    await mkdir(partial, { mode: 0o700 }).catch((error: unknown) => {
      const isThere = (error as NodeJS.ErrnoException).code === 'EEXIST'
      const reason = isThere ? 'exists: another export runs or was interrupted; delete it' : (error as Error).message
      throw new CommandFailure(EXIT.noInput, `${partial} ${reason}`)
    })
    const exported = await write(publisher, partial, output).catch(async (error: unknown) => {
      await rm(partial, { recursive: true })
      throw error
    })
    await rename(partial, directory)
    const { records, tombstones, unreadable } = exported
    const missing = unreadable === 0 ? '' : `, ${unreadable} unreadable`
    output.result(exported, `${records} records, ${tombstones} tombstones${missing}: ${path}`)
    return unreadable === 0 ? EXIT.done : EXIT.badData
  })
}

/** Returns how many instances and tombstones were exported; `unreadable` were not. */
async function write(publisher: Publisher, directory: string, output: Context['output']) {
  const listed = await publisher.list()
  const written = new Set<string>()
  let unreadable = 0
  // not asynchronously, which takes several times as long for small files
  const create = (name: string, content: string | Uint8Array) => {
    writeFileSync(join(directory, name), content, { mode: 0o600, flag: 'wx' })
  }
  const exportOne = async (id: string) => {
    const published = await publisher.get(id).catch((error: unknown) => {
      if (error instanceof StoreUnavailable) throw error
      unreadable += 1
      output.warn(`${id} is not exported: ${(error as Error).message}`)
      return undefined
    })
    if (published === undefined) return // or it was removed meanwhile, and has a tombstone
    create(`${id}.json`, formatRecord(published.document))
    if (published.userData !== undefined) create(`${id}.user-data`, published.userData)
    written.add(id)
  }
  await forEachOf(listed, ({ id }) => exportOne(id), MAX_IN_FLIGHT)
  const tombstones = await publisher.tombstones()
  for (const { id, ...tombstone } of tombstones) {
    create(`${id}.removed`, `${formatTombstone(tombstone)}\n`)
    if (!written.delete(id)) continue // else it was removed after it was read
    for (const ending of ['.json', '.user-data']) await rm(join(directory, id + ending), { force: true })
  }
  return { records: written.size, tombstones: tombstones.length, unreadable }
}
