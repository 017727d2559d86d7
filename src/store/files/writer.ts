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
import type { RecordChange, RecordWriter } from '../backend.ts'
import { RECORD_ENDINGS } from '../document.ts'
import { isOtherIncarnation, judgePut, judgeRemove, type Stored } from '../rules.ts'
import { formatTombstone, sealAfter, withSeal } from '../seal.ts'
import { FileFault, formatRecord, loadFiles, readPending } from './load.ts'
import type { FileOperations } from './operations.ts'
import { formatPending, type PendingChange } from './pending.ts'
import { publishedAs, removedAt, type RecordIndex } from './record-index.ts'
import { listFiles } from './stamps.ts'
import { ifThere } from '../../runtime/regular-file.ts'

const TEMPORARY = '.publisher.tmp'

export function buildFileWriter(
  directory: string,
  operations: FileOperations,
  index: RecordIndex,
): RecordWriter & { recover(): Promise<void> } {
  const remove = (name: string) => operations.remove(join(directory, name))
  const replace = async (name: string, content: string | Uint8Array) => {
    const temporary = join(directory, TEMPORARY)
    await operations.create(temporary, content)
    await operations.rename(temporary, join(directory, name))
  }
  const isSame = async (id: string, document: unknown, userData: RecordChange['userData']) => {
    const current = await loadFiles(directory, id)
    return (
      current.kind === 'record' &&
      JSON.stringify(current.document) === JSON.stringify(document) &&
      (userData === 'keep' || sameBytes(current.userData, userData))
    )
  }
  /**
   * Rejects if a directory has the name of a file that a commit would replace or remove, which would stop every writer
   * halfway.
   */
  const checkFiles = async (id: string) => {
    for (const ending of [...RECORD_ENDINGS, '.user-data', '.removed', '.pending']) {
      const stats = await ifThere(lstat(join(directory, id + ending)))
      if (stats?.isDirectory() === true) throw new Error(`${id}${ending} is a directory, not a regular file: delete it`)
    }
  }
  /** Updates the files of an instance according to a pending change. Repeating it changes nothing more. */
  const apply = async (id: string, change: PendingChange) => {
    if (change.kind === 'remove') {
      await replace(`${id}.removed`, `${change.tombstone}\n`)
      for (const ending of [...RECORD_ENDINGS, '.user-data']) await remove(id + ending)
      return
    }
    const { document, userData } = change
    if (userData === 'none') await remove(`${id}.user-data`)
    else if (userData !== 'keep') await replace(`${id}.user-data`, userData)
    await replace(`${id}.json`, formatRecord(document))
    for (const ending of ['.yaml', '.yml', '.removed']) await remove(id + ending)
  }
  const finish = async (id: string) => {
    await operations.sync(directory)
    await remove(`${id}.pending`)
  }
  const commit = async (id: string, change: PendingChange, stored: Stored) => {
    await replace(`${id}.pending`, formatPending(change))
    await operations.sync(directory)
    await apply(id, change)
    await finish(id)
    await index.set(id, stored, ['.json', '.removed', '.user-data'])
  }
  /** Applies and finishes the pending change of another writer. */
  const finishPending = async (id: string) => {
    const change = await readPending(directory, id).catch((error: unknown) => {
      if (!(error instanceof FileFault)) throw error
      return undefined
    })
    // not written by imds: daemons report its instance as faulty
    if (change === undefined || change === 'invalid') return
    await apply(id, change)
    await finish(id)
  }

  return {
    /** Finishes what an earlier writer left pending, deletes the tombstones that have ended, and reads what has changed. */
    recover: async () => {
      await remove(TEMPORARY) // may be incomplete
      let files = await listFiles(directory)
      const pending = [...files].filter(([, endings]) => endings.includes('.pending')).map(([id]) => id)
      for (const id of pending) await finishPending(id)
      if (pending.length > 0) files = await listFiles(directory)
      await index.refresh(files, (id) => remove(`${id}.removed`))
    },
    write: async ({ instance, document: unsealed, userData, liftsSeal, dryRun }) => {
      const { id, revision } = instance
      const stored = index.get(id)
      if (isOtherIncarnation(stored, instance.incarnation)) return { kind: 'incarnation' }
      const sealedAt = sealAfter(stored?.sealedAt, instance.sealedAt, liftsSeal)
      const document = withSeal(unsealed, sealedAt)
      const faults = sizeFaults(document) // again, with the seal
      if (faults.length > 0) return { kind: 'invalid', faults }
      const isUnchanged = revision === stored?.revision && (await isSame(id, document, userData))
      const verdict = judgePut(revision, stored, isUnchanged, index.findConflict(instance))
      if (verdict.kind === 'unchanged') return { kind: 'unchanged', order: 0, sealedAt }
      if (verdict.kind !== 'write') return verdict
      await checkFiles(id)
      if (!dryRun) await commit(id, { kind: 'put', document, userData }, publishedAs(instance, sealedAt))
      return { kind: 'published', order: 0, sealedAt }
    },
    remove: async (id, given, { dryRun = false, sealedAt, incarnation }) => {
      const { kind } = await loadFiles(directory, id)
      const stored = index.get(id)
      if (isOtherIncarnation(stored, incarnation)) return { kind: 'incarnation' }
      const hasRecord = kind !== 'removed' && kind !== 'absent'
      const verdict = judgeRemove(given, stored, { hasRecord, hasTombstone: kind === 'removed' })
      if (verdict.kind !== 'write') return verdict
      const { revision } = verdict
      const seal = stored?.sealedAt ?? sealedAt
      const tombstone = {
        revision,
        incarnation: stored?.incarnation ?? incarnation,
        ...(seal !== undefined && { sealedAt: seal }),
      }
      await checkFiles(id)
      if (!dryRun) await commit(id, { kind: 'remove', tombstone: formatTombstone(tombstone) }, removedAt(tombstone))
      return { kind: hasRecord ? 'removed' : 'unchanged', revision, order: 0 }
    },
  }
}

function sameBytes(a: Uint8Array | undefined, b: Uint8Array | 'none'): boolean {
  return a === undefined || b === 'none' ? a === undefined && b === 'none' : Buffer.compare(a, b) === 0
}
