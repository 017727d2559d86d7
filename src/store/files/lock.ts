/**
 * The lock that keeps the writers of a directory apart.
 *
 * Node has no call that locks a file, but SQLite has: an exclusive transaction on an empty database, in which nothing is ever written. The
 * kernel releases the lock with its process, however that ends, and the lock holds between containers that share the directory.
 *
 * Left out: file systems without POSIX locks (the lock cannot be taken, so nothing is written), and mounts that keep locks to
 * one machine (NFS with `nolock`), where writers on two machines are not kept apart.
 */
import { accessSync, closeSync, constants, fchownSync, lstatSync, openSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'

const WAIT_MS = 5000
/** SQLite's primary result codes. */
const BUSY = 5
const NOT_A_DATABASE = 26

/** A lock that is held until it is closed, or its process ends. */
export interface Lock { close(): void }

/** Takes the lock at `path`, whose file is made where it is missing. Waits for up to 5 s, then rejects with a message for people. */
export async function takeLock(path: string): Promise<Lock> {
  for (const deadlineMs = performance.now() + WAIT_MS; ;) {
    const lock = tryLock(path)
    if (lock !== undefined) return lock
    if (performance.now() > deadlineMs) throw new Error(`another writer has held ${path} for ${String(WAIT_MS / 1000)} s, or this file system has no locks`)
    await sleep(10 + Math.random() * 20)
  }
}

function tryLock(path: string): Lock | undefined {
  makeFile(path)
  // Not through a symbolic link: the owner of the directory could make root open, and write, a file elsewhere.
  if (!lstatSync(path).isFile()) throw new Error(`cannot lock ${path}: it is not a regular file, delete it`)
  accessSync(path, constants.R_OK | constants.W_OK) // where it may only read, SQLite would say that it has the lock, and lets others have it
  const database = new DatabaseSync(path, { timeout: 0, open: false })
  try {
    database.open()
    database.exec('PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE')
    return database
  } catch (error) {
    if (database.isOpen) database.close()
    const code = ((error as { errcode?: number }).errcode ?? 0) & 0xff
    if (code === BUSY) return undefined
    const reason = code === NOT_A_DATABASE ? 'it is not the file that imds makes, delete it' : (error as Error).message
    throw new Error(`cannot lock ${path}: ${reason}`, { cause: error })
  }
}

/**
 * Makes the file, owned like its directory where we are root. Without a pause, and never by opening one that is there: to close any
 * descriptor of a file releases all POSIX locks that this process has on it.
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
