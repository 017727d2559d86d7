/**
 * The process of an embedded server: ending it, also one that an imds-api started which was killed.
 *
 * The directory of the server belongs to the user who runs PostgreSQL, and that user may have put anything there. So no
 * link is followed, and what a file says to be a server gets a signal only if it is PostgreSQL, of that user, with this
 * data directory.
 */
import type { ChildProcess } from 'node:child_process'
import { closeSync, constants, fstatSync, openSync, readlinkSync, readSync, realpathSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** A server that this process has started. `exited` resolves when it has ended. */
export interface Launched {
  readonly child: ChildProcess
  readonly exited: Promise<void>
}

const STOP_TIMEOUT_MS = 30_000
const POLL_MS = 10
/** The most that is read of a file, from its end. */
const MAX_BYTES = 64 * 1024
/** What the kernel calls the program of a server; an upgrade may have deleted it. */
const PROGRAM = /\/postgres(?: \(deleted\))?$/

/**
 * The end of a file of the server. Undefined: it is not a file of the owner of `directory`, or there is none. `name`:
 * its path in the directory.
 */
export function readOwned(directory: string, name: string): string | undefined {
  let fd: number
  try {
    fd = openSync(
      join(directory, name),
      constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK | constants.O_NOCTTY,
    )
  } catch {
    return undefined
  }
  try {
    const { uid, size } = fstatSync(fd)
    if (!fstatSync(fd).isFile() || uid !== statSync(directory).uid) return undefined
    const bytes = Buffer.alloc(Math.min(size, MAX_BYTES))
    return bytes.toString('utf8', 0, readSync(fd, bytes, 0, bytes.length, size - bytes.length))
  } finally {
    closeSync(fd)
  }
}

/** Ends a server by PostgreSQL's fast shutdown, which closes connections and loses nothing. */
export async function stopLaunched({ child, exited }: Launched): Promise<void> {
  child.ref() // nothing else may keep this process running until then
  child.kill('SIGINT')
  await Promise.race([exited, sleep(STOP_TIMEOUT_MS, undefined, { ref: false })])
  child.kill('SIGQUIT') // no effect on one that has ended
}

/** Ends the server of a directory that another process has started. */
export async function stopOther(directory: string): Promise<void> {
  const pid = Number(readOwned(directory, 'data/postmaster.pid')?.split('\n', 1)[0])
  if (!signalServer(pid, directory, 'SIGINT')) return
  for (const deadline = performance.now() + STOP_TIMEOUT_MS; isServer(pid, directory);) {
    if (performance.now() > deadline) {
      signalServer(pid, directory, 'SIGQUIT')
      return
    }
    await sleep(POLL_MS)
  }
}

/** False: there is no such server any more. */
function signalServer(pid: number, directory: string, name: NodeJS.Signals): boolean {
  try {
    return isServer(pid, directory) && process.kill(pid, name)
  } catch {
    return false
  }
}

/**
 * True if this process is the PostgreSQL server of a directory. Without /proc (macOS) the kernel alone protects the
 * processes of other users.
 */
function isServer(pid: number, directory: string): boolean {
  if (!Number.isSafeInteger(pid) || pid <= 1) return false
  if (process.platform !== 'linux') return process.getuid!() !== 0 && process.kill(pid, 0)
  const of = `/proc/${String(pid)}`
  try {
    return (
      statSync(of).uid === statSync(directory).uid &&
      PROGRAM.test(readlinkSync(`${of}/exe`)) &&
      readlinkSync(`${of}/cwd`) === realpathSync(join(directory, 'data'))
    )
  } catch {
    return false
  }
}
