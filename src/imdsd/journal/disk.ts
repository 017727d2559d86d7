/**
 * The operations on the files that keep the view on disk. They are passed as an argument, so that a test can stop,
 * delay or fail each of them.
 */
import { mkdir, open, readdir, rename, rm, stat, utimes, type FileHandle } from 'node:fs/promises'
import { dirname } from 'node:path'
import { ifThere, syncDirectory } from '../../runtime/regular-file.ts'

/** A file that is being written from its beginning. */
export type DiskFile = Pick<FileHandle, 'writeFile' | 'datasync' | 'sync' | 'utimes' | 'stat' | 'close'>

/** Operations on files. Each rejects with the error of the file system. */
export interface Disk {
  /** Creates the directory of a file, with mode 0700, if it is missing. */
  readonly makeDirectory: (path: string) => Promise<unknown>
  /** Creates a file with mode 0600, or empties it. */
  readonly create: (path: string) => Promise<DiskFile>
  readonly rename: (from: string, to: string) => Promise<void>
  /** Removes a file, if it exists. */
  readonly remove: (path: string) => Promise<void>
  readonly setTime: (path: string, at: Date) => Promise<void>
  /** The names in the directory of a file. None if there is no directory. */
  readonly namesBeside: (path: string) => Promise<readonly string[]>
  /** When a file was created, renamed or written, in milliseconds since 1970. */
  readonly changedAtMs: (path: string) => Promise<number>
  /** Flushes the directory of a file, if there is one: its names are as they are now, also after a power failure. */
  readonly syncDirectory: (path: string) => Promise<void>
}

export const DISK: Disk = {
  makeDirectory: (path) => mkdir(dirname(path), { recursive: true, mode: 0o700 }),
  create: (path) => open(path, 'w', 0o600),
  rename,
  remove: (path) => rm(path, { force: true }),
  setTime: (path, at) => utimes(path, at, at),
  namesBeside: async (path) => (await ifThere(readdir(dirname(path)))) ?? [],
  changedAtMs: async (path) => (await stat(path)).ctimeMs,
  syncDirectory: (path) => ifThere(syncDirectory(dirname(path))),
}
