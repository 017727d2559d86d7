/**
 * The lock of the state directory: two daemons with one directory would overwrite each other's journal. The kernel
 * releases it when the process ends, however it ends. A daemon that could not take it at its start writes nothing
 * there later either.
 */
import { mkdirSync } from 'node:fs'
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
 * then rejects with a StartFailure. If there can be no lock, it says so, and nothing is written there. Root gets no
 * directory of another user, who could put links there that lead root to any file.
 */
export async function lockState(stateDirectory: string, waitMs: number, log: Log): Promise<StateLock> {
  const owner = otherOwnerOf(stateDirectory)
  if (owner !== undefined)
    throw new StartFailure(
      `IMDS_STATE_DIR: ${stateDirectory} belongs to the user with the id ${owner.uid}: ` +
        'run imdsd as that user, not as root',
    )
  try {
    mkdirSync(stateDirectory, { recursive: true, mode: 0o700 })
    const lock = await takeLock(lockPath(stateDirectory), waitMs)
    return { close: () => lock.close(), disk: DISK }
  } catch (error) {
    if (error instanceof LockHeld)
      throw new StartFailure(
        `IMDS_STATE_DIR: another imdsd uses ${stateDirectory}, or its file system has no locks: ` +
          'stop the other one, or give each a directory of its own on a local disk',
        { cause: error },
      )
    log.warn(
      { code: 'state-not-written', path: stateDirectory, err: error },
      'the state directory cannot be locked or written: nothing is kept on disk. Correct that, and restart imds',
    )
    return { close: () => undefined, disk: READ_ONLY }
  }
}

const rejectWrite = () =>
  Promise.reject(
    new Error('the state directory could not be locked at the start, so another daemon may use it now: restart imds'),
  )
/** Changes nothing: the directory may have become writable, and another daemon may have its lock. */
const READ_ONLY: Disk = {
  ...DISK,
  makeDirectory: rejectWrite,
  create: rejectWrite,
  rename: rejectWrite,
  remove: rejectWrite,
}
