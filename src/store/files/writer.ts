/**
 * Checks and writes one instance in a directory of files, while the lock is held.
 *
 * One rename, to `ID.pending`, commits a change. Then the writer updates the other files of the instance and removes the pending file. So if a writer
 * ends at any moment, even by a power failure, daemons read either the old state or the new one, and the next writer finishes the change. Revisions,
 * seals and the owners of addresses are checked against the records, or against the ledger for records that cannot be read.
 */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { overlap } from '../../metadata/address.ts'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import { sizeFaults } from '../../metadata/record.ts'
import type { Change, PlainWriter, Written } from '../backend.ts'
import { RECORD_ENDINGS } from '../document.ts'
import type { Published, RemoveResult } from '../publisher.ts'
import { formatTombstone, sealAfter, withSeal } from '../seal.ts'
import { formatLedger, publishedAs, readLedger, removedAt, survey, type Protection, type Protections } from './ledger.ts'
import type { FileOperations } from './operations.ts'
import { formatPending, parsePending, type Change as PendingChange } from './pending.ts'
import { formatRecord, idOfFile, loadFiles } from './source.ts'

const LEDGER = '.publisher.json'
const TEMPORARY = '.publisher.tmp'

/** The writer of a directory. Build one each time that the lock is taken, and call `recover` first. */
export class FileWriter implements PlainWriter {
  readonly #directory: string
  readonly #operations: FileOperations
  #protections: Protections = new Map()

  constructor(directory: string, operations: FileOperations) {
    this.#directory = directory
    this.#operations = operations
  }

  /** Finishes what an earlier writer left pending, and brings the ledger in line with the records. */
  async recover(): Promise<void> {
    await this.#remove(TEMPORARY) // may be incomplete
    const unfinished: string[] = []
    for (const name of (await readdir(this.#directory)).filter((name) => name.endsWith('.pending'))) {
      const id = idOfFile(name)
      const change = id === undefined ? undefined : parsePending(await readFile(join(this.#directory, name)))
      if (id === undefined || change === undefined) continue // not written by imds: daemons report its instance as faulty
      await this.#apply(id, change)
      unfinished.push(id)
    }
    const remembered = await readLedger(join(this.#directory, LEDGER))
    this.#protections = await survey(this.#directory, remembered)
    if (formatLedger(remembered) !== formatLedger(this.#protections)) await this.#saveLedger()
    for (const id of unfinished) await this.#finish(id)
  }

  get(id: string): Promise<Published | undefined> {
    return loadPublished(this.#directory, id)
  }

  async write({ instance, document: unsealed, userData, liftsSeal, dryRun }: Change): Promise<Written> {
    const { id, revision } = instance
    const current = await loadFiles(this.#directory, id)
    const known = this.#protections.get(id)
    const sealedAt = sealAfter(known?.sealedAt, instance.sealedAt, liftsSeal)
    const document = withSeal(unsealed, sealedAt)
    const faults = sizeFaults(document) // again, with the seal
    if (faults.length > 0) return { kind: 'invalid', faults }
    if (known !== undefined && revision < known.revision) return { kind: 'stale', revision: known.revision }
    if (revision === known?.revision) {
      const same = current.kind === 'record' && JSON.stringify(current.document) === JSON.stringify(document)
        && (userData === 'keep' || sameBytes(current.userData, userData))
      return same ? { kind: 'unchanged', sealedAt } : { kind: 'stale', revision }
    }
    for (const [owner, { ranges }] of this.#protections) {
      const taken = owner === id ? undefined : overlapOf(instance, ranges)
      if (taken !== undefined) return { kind: 'address-owned', network: taken.network, address: taken.range, owner }
    }
    if (dryRun) return { kind: 'published', sealedAt }
    await this.#commit(id, { kind: 'put', document, userData }, publishedAs(instance, sealedAt))
    return { kind: 'published', sealedAt }
  }

  async remove(id: string, given: number | undefined): Promise<RemoveResult> {
    const loaded = await loadFiles(this.#directory, id)
    const known = this.#protections.get(id)
    const isThere = loaded.kind === 'record' || loaded.kind === 'unreadable' || known?.isRemoved === false
    if (!isThere && loaded.kind === 'absent' && given === undefined) return { kind: 'absent' }
    const last = known?.revision ?? 0
    const revision = given ?? (isThere ? last + 1 : Math.max(last, 1))
    if (revision < last) return { kind: 'stale', revision: last }
    const removed = removedAt(revision, known?.sealedAt)
    await this.#commit(id, { kind: 'remove', tombstone: formatTombstone(removed) }, removed)
    return { kind: isThere ? 'removed' : 'unchanged', revision }
  }

  async #commit(id: string, change: PendingChange, protection: Protection): Promise<void> {
    await this.#replace(`${id}.pending`, formatPending(change))
    await this.#operations.sync(this.#directory)
    await this.#apply(id, change)
    this.#protections.set(id, protection)
    await this.#saveLedger()
    await this.#finish(id)
  }

  /** Updates the files of an instance according to a pending change. Repeating it changes nothing more. */
  async #apply(id: string, change: PendingChange): Promise<void> {
    if (change.kind === 'remove') {
      await this.#replace(`${id}.removed`, `${change.tombstone}\n`)
      for (const ending of [...RECORD_ENDINGS, '.user-data']) await this.#remove(id + ending)
      return
    }
    const { document, userData } = change
    if (userData === 'none') await this.#remove(`${id}.user-data`)
    else if (userData !== 'keep') await this.#replace(`${id}.user-data`, userData)
    await this.#replace(`${id}.json`, formatRecord(document))
    for (const ending of ['.yaml', '.yml', '.removed']) await this.#remove(id + ending)
  }

  async #finish(id: string): Promise<void> {
    await this.#operations.sync(this.#directory)
    await this.#remove(`${id}.pending`)
  }

  async #saveLedger(): Promise<void> {
    await this.#replace(LEDGER, formatLedger(this.#protections))
  }

  async #replace(name: string, content: string | Uint8Array): Promise<void> {
    const temporary = join(this.#directory, TEMPORARY)
    await this.#operations.create(temporary, content)
    await this.#operations.rename(temporary, join(this.#directory, name))
  }

  async #remove(name: string): Promise<void> {
    await this.#operations.remove(join(this.#directory, name))
  }
}

/** Returns the published instance. Rejects when it cannot be read. */
export async function loadPublished(directory: string, id: string): Promise<Published | undefined> {
  const loaded = await loadFiles(directory, id)
  if (loaded.kind === 'unreadable') throw new Error(loaded.reason)
  return loaded.kind === 'record' ? { document: loaded.document, userData: loaded.userData } : undefined
}

/** The first range of an instance that overlaps one of others. */
function overlapOf(instance: Instance, others: Protection['ranges']): { network: string, range: string } | undefined {
  return rangesOf(instance).find((mine) => others.some(({ network, range }) => network === mine.network && overlap(range, mine.range)))
}

function sameBytes(a: Uint8Array | undefined, b: Uint8Array | 'none'): boolean {
  return a === undefined || b === 'none' ? a === undefined && b === 'none' : Buffer.compare(a, b) === 0
}
