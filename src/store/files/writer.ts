/**
 * Checks and writes one instance in a directory of files, while the lock is held.
 *
 * One rename, to `ID.pending`, commits a change. Then the writer updates the other files of the instance and removes
 * the pending file. So if a writer ends at any moment, even by a power failure, daemons read either the old state or
 * the new one, and the next writer finishes the change. rules.ts has the rules of revisions, seals and addresses.
 */
import { lstat } from 'node:fs/promises'
import { join } from 'node:path'
import { sizeFaults } from '../../metadata/record.ts'
import type { RecordChange, RecordWriter, Written } from '../backend.ts'
import { RECORD_ENDINGS } from '../document.ts'
import type { RemoveOptions, RemoveResult } from '../publisher.ts'
import { judgePut, judgeRemove, type Stored } from '../rules.ts'
import { formatTombstone, sealAfter, withSeal } from '../seal.ts'
import { FileFault, formatRecord, loadFiles, readPending } from './load.ts'
import type { FileOperations } from './operations.ts'
import { formatPending, type PendingChange } from './pending.ts'
import { publishedAs, removedAt, type RecordIndex } from './record-index.ts'
import { listFiles } from './stamps.ts'
import { ifThere } from '../../runtime/regular-file.ts'

const TEMPORARY = '.publisher.tmp'

export class FileWriter implements RecordWriter {
  readonly #directory: string
  readonly #operations: FileOperations
  readonly #index: RecordIndex

  constructor(directory: string, operations: FileOperations, index: RecordIndex) {
    this.#directory = directory
    this.#operations = operations
    this.#index = index
  }

  /** Finishes what an earlier writer left pending, deletes the tombstones that have ended, and reads what has changed. */
  async recover(): Promise<void> {
    await this.#remove(TEMPORARY) // may be incomplete
    let files = await listFiles(this.#directory)
    const pending = [...files].filter(([, endings]) => endings.includes('.pending')).map(([id]) => id)
    for (const id of pending) if (await this.#applyPending(id)) await this.#finish(id)
    if (pending.length > 0) files = await listFiles(this.#directory)
    await this.#index.refresh(files, (id) => this.#remove(`${id}.removed`))
  }

  async write({ instance, document: unsealed, userData, liftsSeal, dryRun }: RecordChange): Promise<Written> {
    const { id, revision } = instance
    const stored = this.#index.get(id)
    const sealedAt = sealAfter(stored?.sealedAt, instance.sealedAt, liftsSeal)
    const document = withSeal(unsealed, sealedAt)
    const faults = sizeFaults(document) // again, with the seal
    if (faults.length > 0) return { kind: 'invalid', faults }
    const isSame = revision === stored?.revision && (await this.#isSame(id, document, userData))
    const verdict = judgePut(revision, stored, isSame, this.#index.findConflict(instance))
    if (verdict.kind === 'unchanged') return { kind: 'unchanged', sealedAt }
    if (verdict.kind !== 'write') return verdict
    await this.#checkFiles(id)
    if (!dryRun) await this.#commit(id, { kind: 'put', document, userData }, publishedAs(instance, sealedAt))
    return { kind: 'published', sealedAt }
  }

  async #isSame(id: string, document: unknown, userData: RecordChange['userData']): Promise<boolean> {
    const current = await loadFiles(this.#directory, id)
    return (
      current.kind === 'record' &&
      JSON.stringify(current.document) === JSON.stringify(document) &&
      (userData === 'keep' || sameBytes(current.userData, userData))
    )
  }

  async remove(
    id: string,
    given: number | undefined,
    { dryRun = false, sealedAt }: RemoveOptions,
  ): Promise<RemoveResult> {
    const { kind } = await loadFiles(this.#directory, id)
    const stored = this.#index.get(id)
    const hasRecord = kind !== 'removed' && kind !== 'absent'
    const verdict = judgeRemove(given, stored, { hasRecord, hasTombstone: kind === 'removed' })
    if (verdict.kind !== 'write') return verdict
    const { revision } = verdict
    const seal = stored?.sealedAt ?? sealedAt
    const tombstone = { revision, ...(seal !== undefined && { sealedAt: seal }) }
    await this.#checkFiles(id)
    if (!dryRun) await this.#commit(id, { kind: 'remove', tombstone: formatTombstone(tombstone) }, removedAt(tombstone))
    return { kind: hasRecord ? 'removed' : 'unchanged', revision }
  }

  /**
   * Rejects if a directory has the name of a file that a commit would replace or remove, which would stop every writer
   * halfway.
   */
  async #checkFiles(id: string): Promise<void> {
    for (const ending of [...RECORD_ENDINGS, '.user-data', '.removed', '.pending']) {
      const stats = await ifThere(lstat(join(this.#directory, id + ending)))
      if (stats?.isDirectory() === true) throw new Error(`${id}${ending} is a directory, not a regular file: delete it`)
    }
  }

  async #commit(id: string, change: PendingChange, stored: Stored): Promise<void> {
    await this.#replace(`${id}.pending`, formatPending(change))
    await this.#operations.sync(this.#directory)
    await this.#apply(id, change)
    await this.#finish(id)
    await this.#index.set(id, stored, ['.json', '.removed', '.user-data'])
  }

  /** Applies the pending change of another writer. Resolves with false if there is none. */
  async #applyPending(id: string): Promise<boolean> {
    const change = await readPending(this.#directory, id).catch((error: unknown) => {
      if (!(error instanceof FileFault)) throw error
      return undefined
    })
    // not written by imds: daemons report its instance as faulty
    if (change === undefined || change === 'invalid') return false
    await this.#apply(id, change)
    return true
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

  async #replace(name: string, content: string | Uint8Array): Promise<void> {
    const temporary = join(this.#directory, TEMPORARY)
    await this.#operations.create(temporary, content)
    await this.#operations.rename(temporary, join(this.#directory, name))
  }

  async #remove(name: string): Promise<void> {
    await this.#operations.remove(join(this.#directory, name))
  }
}

function sameBytes(a: Uint8Array | undefined, b: Uint8Array | 'none'): boolean {
  return a === undefined || b === 'none' ? a === undefined && b === 'none' : Buffer.compare(a, b) === 0
}
