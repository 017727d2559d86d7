/** The names of the files, and setting them aside (journal.ts lists them). */
import { basename, dirname, join } from 'node:path'
import type { KeyObject } from 'node:crypto'
import type { RecordCipher } from '../../store/crypto/record-cipher.ts'
import type { Disk } from './disk.ts'

/** The ending of a file that is being written. A kill may leave it. */
export const TEMPORARY = '.tmp'
const PREVIOUS = '.previous'
const JOURNAL = 'view.journal.'

/** The owner of the files. Files of another hypervisor, region or store are not served. */
export interface StateOwner {
  readonly store: string
  readonly region: string | undefined
  readonly hypervisor: string | undefined
}

/**
 * `cipher` encrypts the files (undefined: they are plain). The first of `macKeys`, of any length, authenticates what is
 * written, and all of them verify.
 */
export interface StateKeys {
  readonly cipher: RecordCipher | undefined
  readonly macKeys: readonly (Uint8Array | KeyObject)[]
}

export function snapshotPath(stateDirectory: string): string {
  return join(stateDirectory, 'view.snapshot')
}

/** Where a journal is, beside its snapshot. */
export function journalPath(snapshot: string, generation: number): string {
  return join(dirname(snapshot), `${JOURNAL}${generation}`)
}

/** The generations of the journals among names, in ascending order. */
export function journalGenerations(names: readonly string[]): number[] {
  return names
    .map((name) => Number(/^view\.journal\.(\d{1,15})$/.exec(name)?.[1]))
    .filter((generation) => !Number.isNaN(generation))
    .sort((a, b) => a - b)
}

/** The names of files that a kill during a write has left. They may have user-data. */
export function leftFiles(names: readonly string[]): string[] {
  return names.filter((name) => name.startsWith('view.') && name.endsWith(TEMPORARY))
}

function previousFiles(snapshot: string, names: readonly string[]): string[] {
  return names.filter(
    (name) => name.endsWith(PREVIOUS) && (name.startsWith(JOURNAL) || name.startsWith(basename(snapshot))),
  )
}

/**
 * Deletes a snapshot and its journals. The snapshot is gone for good before a journal is: a power failure that kept only
 * the deletion of a journal would leave an older state.
 */
export async function deleteFiles(disk: Disk, snapshot: string): Promise<void> {
  const names = await disk.namesBeside(snapshot)
  if (names.includes(basename(snapshot))) await disk.remove(snapshot)
  await disk.syncDirectory(snapshot)
  for (const generation of journalGenerations(names)) await disk.remove(journalPath(snapshot, generation))
  await disk.syncDirectory(snapshot)
}

/**
 * Sets a snapshot and its journals aside, in place of those that were set aside before. Continues after an
 * interruption. Needs no space on the disk.
 */
export async function setAside(disk: Disk, snapshot: string): Promise<void> {
  const names = await disk.namesBeside(snapshot)
  const generations = journalGenerations(names)
  const former = snapshot + PREVIOUS
  if (generations.length === 0 && !names.includes(basename(snapshot))) return
  // The snapshot is set aside last, and deleted last. So without it, the journals that were set aside belong to the one
  // that is still in its place, and is not served without its first journal. A power failure does not change the order.
  if (names.includes(basename(former))) {
    for (const name of previousFiles(snapshot, names))
      if (name !== basename(former)) await disk.remove(join(dirname(snapshot), name))
    await disk.syncDirectory(snapshot)
    await disk.remove(former)
  }
  for (const file of [...generations.map((generation) => journalPath(snapshot, generation)), snapshot]) {
    await renameIfThere(disk, file)
    await disk.syncDirectory(snapshot)
  }
}

async function renameIfThere(disk: Disk, path: string): Promise<void> {
  try {
    await disk.rename(path, path + PREVIOUS)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
}

/**
 * Deletes files that were set aside longer ago than a snapshot may be served. They may have user-data. Never rejects:
 * the next resync tries again.
 */
export async function deleteOldPrevious(disk: Disk, snapshot: string, maxAgeMs: number, nowMs: number): Promise<void> {
  const names = await disk.namesBeside(snapshot).catch(() => [])
  for (const name of previousFiles(snapshot, names)) {
    const file = join(dirname(snapshot), name)
    try {
      if (nowMs - (await disk.changedAtMs(file)) > maxAgeMs) await disk.remove(file)
    } catch {
      /* the next resync tries again */
    }
  }
}

export function headerOf({ store, region, hypervisor }: StateOwner): Readonly<Record<string, string | null>> {
  return { store, region: region ?? null, hypervisor: hypervisor ?? null }
}
