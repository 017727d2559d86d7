/**
 * The lock of a directory: one writer at a time, in any process.
 *
 * Node cannot lock a file, but SQLite can: the lock is an exclusive transaction on an empty database, into which
 * nothing is ever written. The kernel releases it when the process ends, however it ends. Containers that share the
 * directory share the lock.
 *
 * Limits: on a file system without POSIX locks, nothing can be written. If the locks of a mount are local to each
 * machine (NFS with `nolock`), writers on two machines do not exclude each other.
 */
import { accessSync, closeSync, constants, fchownSync, lstatSync, openSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'
import { isLinkOfOther } from './other-user.ts'

const LOCK_TIMEOUT_MS = 5_000
/** SQLite's primary result codes. */
const SQLITE_BUSY = 5
const SQLITE_NOTADB = 26

/** A lock; held until it is closed or the process ends. */
export interface Lock {
  close(): void
}

/** Another process, or another part of this one, has the lock. */
export class LockHeld extends Error {}

/**
 * Takes the lock at `path`, and creates its file if it is missing. Waits for up to `waitMs`, then rejects with a
 * LockHeld.
 */
export async function takeLock(path: string, waitMs = LOCK_TIMEOUT_MS): Promise<Lock> {
  for (const deadlineMs = performance.now() + waitMs; ;) {
    const lock = tryLock(path)
    if (lock !== undefined) return lock
    if (performance.now() > deadlineMs)
      throw new LockHeld(`another writer has held ${path} for ${waitMs / 1000} s, or this file system has no locks`)
    await sleep(2 + Math.random() * 6)
  }
}

function tryLock(path: string): Lock | undefined {
  makeFile(path)
  // Follow no symbolic link: the owner of the directory could make root open and write another file.
  const stats = lstatSync(path)
  if (!stats.isFile()) throw new Error(`cannot lock ${path}: it is not a regular file, delete it`)
  if (isLinkOfOther(stats, dirname(path)))
    throw new Error(`cannot lock ${path}: it is a link to a file of another user, delete it`)
  accessSync(path, constants.R_OK | constants.W_OK) // with read access only, SQLite reports success and takes no lock
  const database = new DatabaseSync(path, { timeout: 0, open: false })
  try {
    database.open()
    database.exec('PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE')
    return database
  } catch (error) {
    if (database.isOpen) database.close()
    const code = ((error as { errcode?: number }).errcode ?? 0) & 0xff
    if (code === SQLITE_BUSY) return undefined
    const reason = code === SQLITE_NOTADB ? 'it is not a lock file of imds, delete it' : (error as Error).message
    throw new Error(`cannot lock ${path}: ${reason}`, { cause: error })
  }
}

/**
 * Creates the file, as root with the owner of its directory. Synchronous, and never opens an existing file: closing any
 * descriptor of a file releases every POSIX lock that this process has on it.
 */
function makeFile(path: string): void {
  try {
    const descriptor = openSync(path, 'wx', 0o600)
    try {
      const { uid, gid } = statSync(dirname(path))
      if (process.geteuid?.() === 0) fchownSync(descriptor, uid, gid)
    } finally {
      closeSync(descriptor)
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
}
