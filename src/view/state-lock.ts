/**
 * The lock of the state directory: two daemons with one directory would overwrite each other's journals. The kernel releases it when the process ends,
 * however it ends.
 */
import { accessSync, constants, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Logger } from 'pino'
import { otherOwnerOf } from '../runtime/become-owner.ts'
import { StartFailure } from '../runtime/listen.ts'
import type { Lock } from '../store/files/lock.ts'

/**
 * Takes the lock, and creates the directory if it is missing. Waits for up to `waitMs` for a daemon that is stopping, then rejects with a StartFailure.
 * A directory that cannot be written has no lock: nothing in it is served or written. Root gets no directory of another user, who could put links there
 * that lead root to any file.
 */
export async function lockState(stateDirectory: string, waitMs: number, log: Logger): Promise<Lock> {
  const owner = otherOwnerOf(stateDirectory)
  if (owner !== undefined) throw new StartFailure(`IMDS_STATE_DIR: ${stateDirectory} belongs to the user with the id ${String(owner.uid)}: run imdsd as that user, not as root`)
  const { LockHeld, takeLock } = await import('../store/files/lock.ts')
  const path = join(stateDirectory, 'view.lock')
  try {
    mkdirSync(stateDirectory, { recursive: true, mode: 0o700 })
    return await takeLock(path, waitMs)
  } catch (error) {
    if (error instanceof LockHeld) {
      throw new StartFailure(`IMDS_STATE_DIR: another imdsd uses ${stateDirectory}, or its file system has no locks: stop the other one, or give each a directory of its own`, { cause: error })
    }
    if (isWritable(stateDirectory)) log.warn({ path, err: error }, 'the state directory cannot be locked: correct the file, and start no second daemon with this directory')
    return { close: () => { /* there is none */ } }
  }
}

function isWritable(directory: string): boolean {
  try {
    accessSync(directory, constants.W_OK)
    return true
  } catch {
    return false
  }
}
