/**
 * The operations of a writer on the file system. The writer gets them as an argument, so that a test can end its
 * process between any two of them.
 */
import { open, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { syncDirectory } from '../../runtime/regular-file.ts'

/** Operations on files. Each rejects with the error of the file system. */
export interface FileOperations {
  /**
   * Creates a file with all of its content, durably. Root gives it the owner and group of its directory. Rejects if the
   * file exists.
   */
  readonly create: (path: string, content: string) => Promise<void>
  readonly rename: (from: string, to: string) => Promise<void>
  /** Removes a file, if it exists. */
  readonly remove: (path: string) => Promise<void>
  /** Makes the names in a directory durable. */
  readonly sync: (directory: string) => Promise<void>
}

export const FILE_SYSTEM: FileOperations = {
  async create(path, content) {
    const file = await open(path, 'wx', 0o600)
    try {
      const { uid, gid } = await stat(dirname(path))
      if (process.geteuid?.() === 0) await file.chown(uid, gid)
      await file.writeFile(content)
      await file.sync()
    } finally {
      await file.close()
    }
  },
  rename,
  remove: (path) => rm(path, { force: true }),
  sync: syncDirectory,
}

/** Replaces a file by a rename of `temporary`, of which an earlier writer may have left a part. */
export async function replaceFile(
  operations: FileOperations,
  directory: string,
  name: string,
  content: string,
  temporary: string,
): Promise<void> {
  const path = join(directory, temporary)
  await operations.remove(path)
  await operations.create(path, content)
  await operations.rename(path, join(directory, name))
}
