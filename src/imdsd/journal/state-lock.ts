/**
 * The lock of the state directory: two daemons with one directory would overwrite each other's journal. The kernel
 * releases it when the process ends, however it ends. A daemon that could not write the directory at its start has no
 * lock, so it writes nothing there later either.
 */
import { randomBytes } from 'node:crypto'
import { accessSync, constants, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Log } from '../../runtime/log-codes.ts'
import { otherOwnerOf } from '../../runtime/other-user.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { LockHeld, takeLock, type Lock } from '../../runtime/kernel-lock.ts'
import { DISK, type Disk } from './disk.ts'
import { lockPath } from './state-files.ts'

/** The lock, and the operations on the files that it allows. */
export interface StateLock extends Lock {
  readonly disk: Disk
}

/**
 * Takes the lock, and creates the directory if it is missing. Waits for up to `waitMs` for a daemon that is stopping,
 * then rejects with a StartFailure. Without a lock, it says so: on a file system that has none, and if the file of the
 * lock cannot be used. Root gets no directory of another user, who could put links there that lead root to any file.
 * `take`: takes the lock of a file; a test replaces it.
 */
export async function lockState(stateDirectory: string, waitMs: number, log: Log, take = takeLock): Promise<StateLock> {
  const owner = otherOwnerOf(stateDirectory)
  if (owner !== undefined)
    throw new StartFailure(
      `IMDS_STATE_DIR: ${stateDirectory} belongs to the user with the id ${owner.uid}: ` +
        'run imdsd as that user, not as root',
    )
  const path = lockPath(stateDirectory)
  const unlocked = (disk: Disk): StateLock => ({ close: () => undefined, disk })
  try {
    mkdirSync(stateDirectory, { recursive: true, mode: 0o700 })
    const lock = await take(path, waitMs)
    return { close: () => lock.close(), disk: DISK }
  } catch (error) {
    if (error instanceof LockHeld) {
      if (await hasLocks(stateDirectory)) {
        throw new StartFailure(
          `IMDS_STATE_DIR: another imdsd uses ${stateDirectory}: ` +
            'stop the other one, or give each a directory of its own',
          { cause: error },
        )
      }
      log.warn(
        { code: 'state-not-locked', path },
        'the file system of the state directory has no locks: start no second daemon with this directory',
      )
    } else if (isWritable(stateDirectory)) {
      log.warn(
        { code: 'state-not-locked', path, err: error },
        'the state directory cannot be locked: correct the file, and start no second daemon with this directory',
      )
    } else {
      log.warn(
        { code: 'state-not-written', path: stateDirectory, err: error },
        'the state directory cannot be written: nothing is kept on disk. Correct that, and restart imds',
      )
      return unlocked(READ_ONLY)
    }
    return unlocked(DISK)
  }

  /**
   * Whether a file that nobody else can have locked, since its name cannot be guessed, can be locked. SQLite reports
   * both as "busy".
   */
  async function hasLocks(directory: string): Promise<boolean> {
    const fresh = join(directory, `view.${randomBytes(16).toString('hex')}.tmp`)
    try {
      ;(await take(fresh, 0)).close()
      return true
    } catch (error) {
      return !(error instanceof LockHeld)
    } finally {
      rmSync(fresh, { force: true })
    }
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

const rejectWrite = () =>
  Promise.reject(
    new Error('the state directory could not be written at the start, so another daemon may use it now: restart imds'),
  )
/** Changes nothing: the directory may have become writable, and another daemon may have its lock. */
const READ_ONLY: Disk = {
  ...DISK,
  makeDirectory: rejectWrite,
  create: rejectWrite,
  rename: rejectWrite,
  remove: rejectWrite,
}
