/**
 * The operations on the file that keeps the view on disk. They are passed as an argument, so that a test can stop,
 * delay or fail each of them.
 */
import { mkdir, open, rename, rm, stat, type FileHandle } from 'node:fs/promises'
import { dirname } from 'node:path'
import { ifThere, syncDirectory } from '../../runtime/regular-file.ts'

/** A file that is being written from its beginning. */
export type DiskFile = Pick<FileHandle, 'writeFile' | 'datasync' | 'close'>

/** Operations on files. Each rejects with the error of the file system. */
export interface Disk {
  /** Creates the directory of a file, with mode 0700, if it is missing. */
  readonly makeDirectory: (path: string) => Promise<unknown>
  /** Creates a file with mode 0600, or empties it. */
  readonly create: (path: string) => Promise<DiskFile>
  readonly rename: (from: string, to: string) => Promise<void>
  /** Removes a file, if it exists. */
  readonly remove: (path: string) => Promise<void>
  /** The bytes of a file; undefined: there is none. */
  readonly sizeOf: (path: string) => Promise<number | undefined>
  /** Flushes the directory of a file, if there is one: its names are as they are now, also after a power failure. */
  readonly syncDirectory: (path: string) => Promise<void>
}

export const DISK: Disk = {
  makeDirectory: (path) => mkdir(dirname(path), { recursive: true, mode: 0o700 }),
  create: (path) => open(path, 'w', 0o600),
  rename,
  remove: (path) => rm(path, { force: true }),
  sizeOf: async (path) => (await ifThere(stat(path)))?.size,
  syncDirectory: (path) => ifThere(syncDirectory(dirname(path))),
}
