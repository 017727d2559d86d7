/**
 * What protects the instances of a directory: revisions, seals, and owners of addresses. A writer reads it from all
 * files when it has the lock, since other writers and people change them too.
 *
 * A record that cannot be parsed protects only the seal and the revision that can be read of it, and a record that was
 * deleted by hand nothing. Daemons go on to serve their last good state.
 */
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { overlap } from '../../metadata/address.ts'
import { rangesOf, type Instance, type NetworkRange } from '../../metadata/instance.ts'
import { parse, revisionOf, sealOf } from '../../metadata/record.ts'
import { forEachOf } from '../../limits/for-each-of.ts'
import { ifThere, readRegularFile } from '../../runtime/regular-file.ts'
import type { Stored } from '../rules.ts'
import { parseTombstone, type Seal, type Tombstone } from '../seal.ts'
import { listInstances, loadFiles, MAX_CONCURRENT_READS, MAX_TOMBSTONE_BYTES, TOMBSTONE_ENDING } from './load.ts'

/** How long a tombstone stays, as in Redis (publish.lua). */
const TOMBSTONE_RETENTION_MS = 7 * 24 * 3600 * 1000

/**
 * Reads it, by the ids of the instances. `nowMs`: Unix time. `onExpired` is called for each instance of which nothing
 * is left but a tombstone that is older than 7 days. Rejects if a file cannot be read.
 */
export async function readRecordIndex(
  directory: string,
  nowMs: number,
  onExpired: (id: string) => Promise<void> = () => Promise.resolve(),
): Promise<Map<string, Stored>> {
  const index = new Map<string, Stored>()
  const ids = (await ifThere(listInstances(directory))) ?? []
  await forEachOf(
    ids,
    async (id) => {
      const stored = await loadStored(directory, id)
      if (stored === undefined) return
      const tombstone = stored.isRemoved ? await ifThere(stat(join(directory, id + TOMBSTONE_ENDING))) : undefined
      if (tombstone !== undefined && tombstone.mtimeMs < nowMs - TOMBSTONE_RETENTION_MS) await onExpired(id)
      else index.set(id, stored)
    },
    MAX_CONCURRENT_READS,
  )
  return index
}

/** The first range of an instance that another one owns, all or in part: of several, the first by id. */
export function findConflict(
  index: ReadonlyMap<string, Stored>,
  instance: Instance,
): (NetworkRange & { readonly owner: string }) | undefined {
  for (const range of rangesOf(instance)) {
    const owners = [...index].filter(([id, stored]) => id !== instance.id && owns(stored, range))
    const [owner] = owners.map(([id]) => id).sort()
    if (owner !== undefined) return { ...range, owner }
  }
  return undefined
}

function owns({ ranges }: Stored, { network, range }: NetworkRange): boolean {
  return ranges.some((own) => own.network === network && overlap(own.range, range))
}

/** Computes what protects an instance from its files; undefined: nothing does. Rejects when a file cannot be read. */
async function loadStored(directory: string, id: string): Promise<Stored | undefined> {
  const loaded = await loadFiles(directory, id)
  if (loaded.kind === 'absent') return undefined
  const tombstone = await readTombstone(directory, id)
  if (loaded.kind === 'removed') return removedAt(tombstone ?? { revision: 0 })
  const document = loaded.kind === 'record' ? loaded.document : undefined
  const parsed = parse(document)
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

async function readTombstone(directory: string, id: string): Promise<Tombstone | undefined> {
  const path = join(directory, id + TOMBSTONE_ENDING)
  const file = await readRegularFile(path, MAX_TOMBSTONE_BYTES, 'follow').catch(() => undefined)
  return file?.kind === 'read' ? parseTombstone(file.bytes.toString()) : undefined
}
