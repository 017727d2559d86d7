/**
 * The files that keep the view on disk, in the state directory, all with mode 0600:
 *
 *     view.snapshot             all instances at some moment (snapshot.ts)
 *     view.journal.N            the changes since then (journal.ts); N grows
 *     view.snapshot.previous    a former snapshot with its journals, set aside because it is of another owner, another key or too old
 *     view.journal.N.previous
 */
import { readdirSync } from 'node:fs'
import { open, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { KeyObject } from 'node:crypto'
import type { RecordCipher } from '../store/crypto/record-cipher.ts'

/** The ending of a file that is being written. A kill may leave it. */
export const TEMPORARY = '.tmp'
const PREVIOUS = '.previous'
const JOURNAL = 'view.journal.'

/** The owner of the files. Files of another hypervisor, region or store are not served. */
export interface StateOwner { readonly store: string, readonly region: string | undefined, readonly hypervisor: string | undefined }

/** `cipher` encrypts the files (undefined: they are plain). The first of `macKeys`, of any length, authenticates what is written, and all of them verify. */
export interface StateKeys { readonly cipher: RecordCipher | undefined, readonly macKeys: readonly (Uint8Array | KeyObject)[] }

/** Where the snapshot of a state directory is. */
export function snapshotPath(stateDirectory: string): string {
  return join(stateDirectory, 'view.snapshot')
}

/** Where a journal is, beside its snapshot. */
export function journalPath(snapshot: string, generation: number): string {
  return join(dirname(snapshot), `${JOURNAL}${String(generation)}`)
}

/** The generations of the journals beside a snapshot, in ascending order. */
export function journalGenerations(snapshot: string): number[] {
  return filesBeside(snapshot).map((name) => Number(/^view\.journal\.(\d{1,15})$/.exec(name)?.[1])).filter((generation) => !Number.isNaN(generation)).sort((a, b) => a - b)
}

/** The names of files that a kill during a write, or an older version, has left. They may have user-data. */
export function leftFiles(snapshot: string): string[] {
  return filesBeside(snapshot).filter((name) => name.startsWith('view.') && (name.endsWith(TEMPORARY) || name.endsWith('.rejected')))
}

/** The names of the files that were set aside. */
export function previousFiles(snapshot: string): string[] {
  return filesBeside(snapshot).filter((name) => name.endsWith(PREVIOUS) && (name.startsWith(JOURNAL) || name.startsWith(basename(snapshot))))
}

/** Sets a snapshot and its journals aside, in place of those that were set aside before. Needs no space on the disk. */
export async function setAside(snapshot: string): Promise<void> {
  for (const name of previousFiles(snapshot)) await rm(join(dirname(snapshot), name), { force: true })
  // The snapshot is the last one: if the daemon is killed before that, it is without a journal, and so it is not served.
  for (const generation of journalGenerations(snapshot)) await rename(journalPath(snapshot, generation), journalPath(snapshot, generation) + PREVIOUS)
  await rename(snapshot, snapshot + PREVIOUS)
  await syncDirectory(snapshot)
}

/** Flushes the directory of a file: its names are as they are now, also after a power failure. */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(dirname(path))
  await directory.sync().finally(() => directory.close())
}

/** The owner as a header has it. */
export function headerOf({ store, region, hypervisor }: StateOwner): Readonly<Record<string, string | null>> {
  return { store, region: region ?? null, hypervisor: hypervisor ?? null }
}

function filesBeside(snapshot: string): string[] {
  try {
    return readdirSync(dirname(snapshot))
  } catch {
    return []
  }
}
