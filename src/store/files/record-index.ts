/**
 * The instances in a directory, as a writer knows them: revisions, seals, and owners of addresses. It is in
 * memory only. Before each write it compares the stamps of all files, and reads those that changed, since other writers
 * and people change them too: some milliseconds for 1,000 instances.
 *
 * A record that cannot be parsed protects only the seal and the revision that can be read of it, and a record that was deleted by hand
 * nothing. Daemons go on to serve their last good state.
 */
import { join } from 'node:path'
import { overlap } from '../../metadata/address.ts'
import { rangesOf, type Instance, type NetworkRange } from '../../metadata/instance.ts'
import { parseStored, revisionOf, sealOf } from '../../metadata/record.ts'
import { forEachOf } from '../../limits/for-each-of.ts'
import { readRegularFile } from '../../runtime/regular-file.ts'
import type { Stored } from '../rules.ts'
import { parseTombstone, type Seal, type Tombstone } from '../seal.ts'
import { loadFiles, MAX_TOMBSTONE_BYTES, readPending } from './load.ts'
import { lookUpStamps, MAX_CONCURRENT_LOOKUPS } from './stamps.ts'

/** Instances whose files are read at the same time: a bound on memory, since each may have the longest user-data. */
const MAX_CONCURRENT_READS = 4
/** How long a tombstone stays, as in Redis (publish.lua). */
const TOMBSTONE_RETENTION_MS = 7 * 24 * 3600 * 1000

/** `stamp`: of the files that `stored` was read from; undefined: they are to be read again. */
interface Entry {
  readonly stored: Stored | undefined
  readonly stamp: string | undefined
}

export interface RecordIndex {
  /**
   * Reads the instances whose files changed. `files`: id -> the endings of its files. `onExpired`: called for each
   * instance of which nothing is left but a tombstone that is older than 7 days. Rejects if a file cannot be read.
   */
  refresh(files: ReadonlyMap<string, readonly string[]>, onExpired?: (id: string) => Promise<void>): Promise<void>
  /** What the store has of an instance; undefined: nothing that protects it. */
  get(id: string): Stored | undefined
  /** Updates the entry of an instance after a write. `endings`: of the files that the instance has now. */
  set(id: string, stored: Stored, endings: readonly string[]): Promise<void>
  /** The first range of an instance that another one owns, all or in part: of several, the first by id. */
  findConflict(instance: Instance): (NetworkRange & { readonly owner: string }) | undefined
}

/** `now`: Unix time in milliseconds, for the age of tombstones. */
export function buildRecordIndex(directory: string, now: () => number): RecordIndex {
  const entries = new Map<string, Entry>()
  return {
    refresh: async (files, onExpired = () => Promise.resolve()) => {
      const changed = new Map<string, string | undefined>()
      await forEachOf(
        files,
        async ([id, endings]) => {
          const { text, isRecent, changedAtMs } = await lookUpStamps(directory, id, endings, now())
          const hasExpired = /^\.removed:\S+$/.test(text) && changedAtMs < now() - TOMBSTONE_RETENTION_MS
          if (hasExpired) await onExpired(id)
          if (hasExpired) entries.set(id, { stored: undefined, stamp: text })
          else if (text !== entries.get(id)?.stamp) changed.set(id, isRecent ? undefined : text)
        },
        MAX_CONCURRENT_LOOKUPS,
      )
      for (const id of entries.keys()) if (!files.has(id)) entries.delete(id)
      await forEachOf(
        changed,
        async ([id, stamp]) => {
          entries.delete(id) // if it cannot be read
          const stored = await loadStored(directory, id)
          entries.set(id, { stored, stamp }) // the stamp is older than what is read
        },
        MAX_CONCURRENT_READS,
      )
    },
    get: (id) => entries.get(id)?.stored,
    set: async (id, stored, endings) => {
      const { text } = await lookUpStamps(directory, id, endings, 0)
      entries.set(id, { stored, stamp: text })
    },
    findConflict: (instance) => {
      for (const range of rangesOf(instance)) {
        const owners = [...entries].filter(([id, { stored }]) => id !== instance.id && owns(stored, range))
        const [owner] = owners.map(([id]) => id).sort()
        if (owner !== undefined) return { ...range, owner }
      }
      return undefined
    },
  }
}

function owns(stored: Stored | undefined, { network, range }: NetworkRange): boolean {
  return stored?.ranges.some((own) => own.network === network && overlap(own.range, range)) === true
}

/** Computes what protects an instance from its files; undefined: nothing does. Rejects when a file cannot be read. */
export async function loadStored(directory: string, id: string): Promise<Stored | undefined> {
  const loaded = await loadFiles(directory, id)
  if (loaded.kind === 'absent') return undefined
  const tombstone = await tombstoneOf(directory, id)
  if (loaded.kind === 'removed') return removedAt(tombstone ?? { revision: 0 })
  const document = loaded.kind === 'record' ? loaded.document : undefined
  const parsed = parseStored(document)
  if (parsed.ok && parsed.value.id === id)
    return publishedAs(parsed.value, parsed.value.sealedAt ?? tombstone?.sealedAt)
  const sealedAt = sealOf(document) ?? tombstone?.sealedAt
  const revision = Math.max(revisionOf(document) ?? 0, tombstone?.revision ?? 0)
  return { revision, sealedAt, ranges: [], isRemoved: false }
}

export function publishedAs(instance: Instance, sealedAt: Seal): Stored {
  return {
    revision: instance.revision,
    incarnation: instance.incarnation,
    sealedAt,
    ranges: rangesOf(instance),
    isRemoved: false,
  }
}

export function removedAt({ revision, incarnation, sealedAt }: Tombstone): Stored {
  return { revision, incarnation, sealedAt, ranges: [], isRemoved: true }
}

/** The tombstone of an instance, or of its pending removal. */
async function tombstoneOf(directory: string, id: string): Promise<Tombstone | undefined> {
  const pending = await readPending(directory, id).catch(() => undefined)
  if (typeof pending === 'object' && pending.kind === 'remove') return parseTombstone(pending.tombstone)
  const path = join(directory, `${id}.removed`)
  const file = await readRegularFile(path, MAX_TOMBSTONE_BYTES, 'follow').catch(() => undefined)
  return file?.kind === 'read' ? parseTombstone(file.bytes.toString()) : undefined
}
