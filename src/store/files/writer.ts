/**
 * Checks and writes instances in a directory of files, while the lock is held. rules.ts has the rules of revisions,
 * seals and addresses.
 *
 * One rename commits a put: to `ID.json`, with the user-data in it. The removal of the record commits a removal, once
 * its tombstone is there. A writer that ends at any moment, even by a power failure, leaves the old state or the new
 * one, and beside the new one perhaps files that no longer count, which the next write of the instance removes.
 */
import { lstat } from 'node:fs/promises'
import { join } from 'node:path'
import { sizeFaults } from '../../metadata/record.ts'
import type { RecordChange, RecordWriter } from '../backend.ts'
import { formatRecordWithUserData, RECORD_ENDINGS } from '../document.ts'
import { isOtherIncarnation, judgePut, judgeRemove, type Stored } from '../rules.ts'
import { formatTombstone, sealAfter, withSeal } from '../seal.ts'
import { loadFiles, TOMBSTONE_ENDING, USER_DATA_ENDING } from './load.ts'
import { replaceFile, type FileOperations } from './operations.ts'
import { findConflict, publishedAs, removedAt } from './record-index.ts'
import { ifThere } from '../../runtime/regular-file.ts'

const TEMPORARY = '.publisher.tmp'

/** `index`: what the directory has (record-index.ts), which the writer keeps up to date. */
export function buildFileWriter(
  directory: string,
  operations: FileOperations,
  index: Map<string, Stored>,
): RecordWriter {
  const remove = (name: string) => operations.remove(join(directory, name))
  const commit = async (name: string, content: string) => {
    await replaceFile(operations, directory, name, content, TEMPORARY)
    await operations.sync(directory)
  }
  const isSame = async (id: string, document: unknown, userData: RecordChange['userData']) => {
    const current = await loadFiles(directory, id)
    return (
      current.kind === 'record' &&
      JSON.stringify(current.document) === JSON.stringify(document) &&
      (userData === 'keep' || sameBytes(current.userData, userData))
    )
  }
  /** The endings of the files of an instance. Rejects if one is a directory, which would stop a write halfway. */
  const endingsOf = async (id: string): Promise<string[]> => {
    const present: string[] = []
    for (const ending of [...RECORD_ENDINGS, USER_DATA_ENDING, TOMBSTONE_ENDING]) {
      const stats = await ifThere(lstat(join(directory, id + ending)))
      if (stats?.isDirectory() === true) throw new Error(`${id}${ending} is a directory, not a regular file: delete it`)
      if (stats !== undefined) present.push(ending)
    }
    return present
  }
  const put = async (id: string, endings: readonly string[], document: unknown, userData: RecordChange['userData']) => {
    const kept = userData === 'keep' ? await loadFiles(directory, id) : undefined
    const bytes = kept?.kind === 'record' ? kept.userData : userData instanceof Uint8Array ? userData : undefined
    await commit(`${id}.json`, formatRecordWithUserData(document, bytes))
    for (const ending of endings) if (ending !== '.json') await remove(id + ending)
  }
  const bury = async (id: string, endings: readonly string[], tombstone: string) => {
    await commit(id + TOMBSTONE_ENDING, `${tombstone}\n`)
    // `ID.json` last: beside it the others may not count any more
    for (const ending of RECORD_ENDINGS.toReversed()) {
      if (!endings.includes(ending)) continue
      await remove(id + ending)
      await operations.sync(directory)
    }
    if (endings.includes(USER_DATA_ENDING)) await remove(id + USER_DATA_ENDING)
  }

  return {
    write: async ({ instance, document: unsealed, userData, liftsSeal, dryRun }) => {
      const { id, revision } = instance
      const stored = index.get(id)
      if (isOtherIncarnation(stored, instance.incarnation)) return { kind: 'incarnation' }
      const sealedAt = sealAfter(stored?.sealedAt, instance.sealedAt, liftsSeal)
      const document = withSeal(unsealed, sealedAt)
      const faults = sizeFaults(document) // again, with the seal
      if (faults.length > 0) return { kind: 'invalid', faults }
      const isUnchanged = revision === stored?.revision && (await isSame(id, document, userData))
      const verdict = judgePut(revision, stored, isUnchanged, findConflict(index, instance))
      if (verdict.kind === 'unchanged') return { kind: 'unchanged', order: 0, sealedAt }
      if (verdict.kind !== 'write') return verdict
      const endings = await endingsOf(id)
      if (!dryRun) {
        await put(id, endings, document, userData)
        index.set(id, publishedAs(instance, sealedAt))
      }
      return { kind: 'published', order: 0, sealedAt }
    },
    remove: async (id, given, { dryRun = false, sealedAt, incarnation }) => {
      const { kind } = await loadFiles(directory, id)
      const stored = index.get(id)
      if (isOtherIncarnation(stored, incarnation)) return { kind: 'incarnation' }
      const hasRecord = kind !== 'removed' && kind !== 'absent'
      const verdict = judgeRemove(given, stored, { hasRecord, hasTombstone: stored?.isRemoved === true })
      if (verdict.kind !== 'write') return verdict
      const { revision } = verdict
      const seal = stored?.sealedAt ?? sealedAt
      const tombstone = {
        revision,
        incarnation: stored?.incarnation ?? incarnation,
        ...(seal !== undefined && { sealedAt: seal }),
      }
      const endings = await endingsOf(id)
      if (!dryRun) {
        await bury(id, endings, formatTombstone(tombstone))
        index.set(id, removedAt(tombstone))
      }
      return { kind: hasRecord ? 'removed' : 'unchanged', revision, order: 0 }
    },
  }
}

function sameBytes(a: Uint8Array | undefined, b: Uint8Array | 'none'): boolean {
  return a === undefined || b === 'none' ? a === undefined && b === 'none' : Buffer.compare(a, b) === 0
}
