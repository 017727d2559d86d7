/**
 * Checks and writes one instance in a directory of files, while the lock is held.
 *
 * One rename, to `ID.pending`, commits a change. Then the writer updates the other files of the instance and removes
 * the pending file. So if a writer ends at any moment, even by a power failure, daemons read either the old state or
 * the new one, and the next writer finishes the change. Revisions, seals and the owners of addresses are checked
 * against the records, or against the ledger for records that cannot be read.
 */
import { lstat, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { sizeFaults } from '../../metadata/record.ts'
import type { Change, PlainWriter, Written } from '../backend.ts'
import { RECORD_ENDINGS } from '../document.ts'
import type { Published, RemoveOptions, RemoveResult } from '../publisher.ts'
import { formatTombstone, sealAfter, withSeal } from '../seal.ts'
import type { Catalog } from './catalog.ts'
import { publishedAs, removedAt, type Protection } from './ledger.ts'
import { FileFault, formatRecord, loadFiles, readPending } from './load.ts'
import type { FileOperations } from './operations.ts'
import { formatPending, type Change as PendingChange } from './pending.ts'
import { ifThere, stampOf } from '../../runtime/regular-file.ts'

const TEMPORARY = '.publisher.tmp'

/**
 * The writer of a directory. `catalog` is brought in line with the directory by `recover`, each time that the lock is
 * taken.
 */
export class FileWriter implements PlainWriter {
  readonly #directory: string
  readonly #operations: FileOperations
  readonly #catalog: Catalog

  constructor(directory: string, operations: FileOperations, catalog: Catalog) {
    this.#directory = directory
    this.#operations = operations
    this.#catalog = catalog
  }

  /** Finishes what an earlier writer left pending, and brings the ledger in line with the records. */
  async recover(): Promise<void> {
    await this.#remove(TEMPORARY) // may be incomplete
    await this.#catalog.refresh({ apply: (id) => this.#applyPending(id), finish: (id) => this.#finish(id) })
  }

  get(id: string): Promise<Published | undefined> {
    return loadPublished(this.#directory, id)
  }

  async write({ instance, document: unsealed, userData, liftsSeal, dryRun }: Change): Promise<Written> {
    const { id, revision } = instance
    const known = await this.#catalog.look(id)
    const sealedAt = sealAfter(known?.sealedAt, instance.sealedAt, liftsSeal)
    const document = withSeal(unsealed, sealedAt)
    const faults = sizeFaults(document) // again, with the seal
    if (faults.length > 0) return { kind: 'invalid', faults }
    if (known !== undefined && revision < known.revision) return { kind: 'stale', revision: known.revision }
    if (revision === known?.revision) {
      const current = await loadFiles(this.#directory, id)
      const same =
        current.kind === 'record' &&
        JSON.stringify(current.document) === JSON.stringify(document) &&
        (userData === 'keep' || sameBytes(current.userData, userData))
      return same ? { kind: 'unchanged', sealedAt } : { kind: 'stale', revision }
    }
    const conflict = await this.#catalog.conflictOf(instance)
    if (conflict !== undefined)
      return { kind: 'address-owned', network: conflict.network, address: conflict.range, owner: conflict.owner }
    await this.#checkFiles(id)
    if (dryRun) return { kind: 'published', sealedAt }
    await this.#commit(id, { kind: 'put', document, userData }, publishedAs(instance, sealedAt))
    return { kind: 'published', sealedAt }
  }

  async remove(
    id: string,
    given: number | undefined,
    { dryRun = false, sealedAt }: RemoveOptions,
  ): Promise<RemoveResult> {
    const loaded = await loadFiles(this.#directory, id)
    const known = await this.#catalog.look(id)
    const isThere = (loaded.kind !== 'removed' && loaded.kind !== 'absent') || known?.isRemoved === false
    if (!isThere && loaded.kind === 'absent' && given === undefined) return { kind: 'absent' }
    const last = known?.revision ?? 0
    const revision = given ?? (isThere ? last + 1 : Math.max(last, 1))
    if (revision < last) return { kind: 'stale', revision: last }
    const removed = removedAt(revision, known?.sealedAt ?? sealedAt)
    await this.#checkFiles(id)
    if (!dryRun) await this.#commit(id, { kind: 'remove', tombstone: formatTombstone(removed) }, removed)
    return { kind: isThere ? 'removed' : 'unchanged', revision }
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

  async #commit(id: string, change: PendingChange, protection: Protection): Promise<void> {
    try {
      await this.#catalog.begin(id)
      await this.#replace(`${id}.pending`, formatPending(change))
      await this.#operations.sync(this.#directory)
      const stamp = await this.#apply(id, change)
      await this.#catalog.complete(id, { ...protection, ...(stamp !== undefined && { stamp }) })
      await this.#finish(id)
    } catch (error) {
      this.#catalog.forget() // how far it came is in the files
      throw error
    }
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

  /**
   * Updates the files of an instance according to a pending change, and returns their stamp as `#replace` does.
   * Repeating it changes nothing more.
   */
  async #apply(id: string, change: PendingChange): Promise<string | undefined> {
    if (change.kind === 'remove') {
      const stamp = await this.#replace(`${id}.removed`, `${change.tombstone}\n`)
      for (const ending of [...RECORD_ENDINGS, '.user-data']) await this.#remove(id + ending)
      return stamp && `.removed:${stamp}`
    }
    const { document, userData } = change
    if (userData === 'none') await this.#remove(`${id}.user-data`)
    else if (userData !== 'keep') await this.#replace(`${id}.user-data`, userData)
    const stamp = await this.#replace(`${id}.json`, formatRecord(document))
    for (const ending of ['.yaml', '.yml', '.removed']) await this.#remove(id + ending)
    return stamp && `.json:${stamp}`
  }

  async #finish(id: string): Promise<void> {
    await this.#operations.sync(this.#directory)
    await this.#remove(`${id}.pending`)
  }

  /** Replaces a file, and returns the stamp of the new one; undefined if another program has changed it by now. */
  async #replace(name: string, content: string | Uint8Array): Promise<string | undefined> {
    const [temporary, path] = [join(this.#directory, TEMPORARY), join(this.#directory, name)]
    await this.#operations.create(temporary, content)
    const made = await stat(temporary, { bigint: true })
    await this.#operations.rename(temporary, path)
    const now = await ifThere(stat(path, { bigint: true })) // the rename changed the stamp
    return now?.ino === made.ino && now.mtimeNs === made.mtimeNs && now.size === made.size ? stampOf(now) : undefined
  }

  async #remove(name: string): Promise<void> {
    await this.#operations.remove(join(this.#directory, name))
  }
}

/** Returns the published instance. Rejects when it cannot be read. */
export async function loadPublished(directory: string, id: string): Promise<Published | undefined> {
  const loaded = await loadFiles(directory, id)
  if (loaded.kind === 'unreadable' || loaded.kind === 'user-data') throw new Error(loaded.reason)
  return loaded.kind === 'record' ? { document: loaded.document, userData: loaded.userData } : undefined
}

function sameBytes(a: Uint8Array | undefined, b: Uint8Array | 'none'): boolean {
  return a === undefined || b === 'none' ? a === undefined && b === 'none' : Buffer.compare(a, b) === 0
}
