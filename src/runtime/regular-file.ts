/**
 * Reads files that other users and programs may have made. Reads regular files only, and no more of them than a limit:
 * opening a FIFO would hold up a thread for ever, opening a device can have effects, and a sparse file may be larger
 * than the memory.
 */
import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readFileSync,
  statSync,
  type BigIntStats,
  type StatsBase,
} from 'node:fs'
import { lstat, open, stat, type FileHandle } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isLinkOfOther } from './other-user.ts'

/**
 * What is at a path. `not-regular`: something else than a file; `what` it is, with its article. `stamp`: differs when
 * the file does.
 */
type RegularFile =
  | { readonly kind: 'read'; readonly bytes: Buffer }
  | { readonly kind: 'absent' }
  | { readonly kind: 'too-long'; readonly length: number; readonly stamp: string }
  | { readonly kind: 'not-regular'; readonly what: string }

/**
 * Whether symbolic links are followed. Operators may link records from elsewhere; nobody has to link the files that
 * only imds writes.
 */
type LinkRule = 'follow' | 'refuse'

/** The most bytes of a file that a setting names, such as a key, a certificate or the environment of a service. */
const MAX_SETTING_BYTES = 16 * 1024 * 1024
/** What the caller's shell passes, such as `<(COMMAND)`. It may be a pipe, and its end is awaited. */
const PASSED = /^(?:\/dev\/stdin|(?:\/dev|\/proc\/self)\/fd\/\d+)$/

function flagsOf(links: LinkRule): number {
  const { O_RDONLY, O_NONBLOCK, O_NOCTTY, O_NOFOLLOW } = constants
  return O_RDONLY | O_NONBLOCK | O_NOCTTY | (links === 'follow' ? 0 : O_NOFOLLOW)
}

/**
 * Opens a regular file for reading, and returns its descriptor, which the caller closes. Throws when the file cannot be
 * opened; as root with `links` refused, also if its directory's owner has linked a file of another user there.
 */
export function openRegularFileSync(path: string, links: LinkRule): number {
  // before it is opened, which could have effects
  checkKind(links === 'follow' ? statSync(path) : lstatSync(path))
  const fd = openSync(path, flagsOf(links))
  try {
    const stats = fstatSync(fd)
    checkKind(stats)
    if (links === 'refuse' && isLinkOfOther(stats, dirname(path)))
      throw new Error('it is a link to a file of another user')
    return fd
  } catch (error) {
    closeSync(fd)
    throw error
  }
}

/** Reads a file that a setting names, or that another user may have made. Throws when it cannot be read. */
export function readSettingFile(path: string, links: LinkRule = 'follow'): Buffer {
  if (PASSED.test(path)) return readFileSync(path)
  const fd = openRegularFileSync(path, links)
  try {
    const { size } = fstatSync(fd)
    if (size > MAX_SETTING_BYTES) throw new Error(`it has more than ${MAX_SETTING_BYTES} bytes`)
    return readFileSync(fd)
  } finally {
    closeSync(fd)
  }
}

/** Reads a file of at most `maxBytes`. Rejects when the file cannot be read. */
export async function readRegularFile(path: string, maxBytes: number, links: LinkRule): Promise<RegularFile> {
  // before it is opened, which could have effects
  const before = await ifThere(links === 'follow' ? stat(path) : lstat(path))
  if (before === undefined) return { kind: 'absent' }
  if (!before.isFile()) return { kind: 'not-regular', what: kindOf(before) }
  // Another program may have replaced the file by now.
  const file = await ifThere(open(path, flagsOf(links)))
  if (file === undefined) return { kind: 'absent' }
  try {
    const stats = await file.stat({ bigint: true })
    if (!stats.isFile()) return { kind: 'not-regular', what: kindOf(stats) }
    const length = Number(stats.size)
    return length > maxBytes
      ? { kind: 'too-long', length, stamp: stampOf(stats) }
      : { kind: 'read', bytes: await readBytes(file, length) }
  } finally {
    await file.close()
  }
}

/** Reads the first `length` bytes; fewer at the end of the file. */
async function readBytes(file: FileHandle, length: number): Promise<Buffer> {
  const bytes = Buffer.allocUnsafeSlow(length)
  for (let at = 0; ;) {
    const { bytesRead } = await file.read(bytes, at, length - at, at)
    at += bytesRead
    if (bytesRead === 0 || at === length) return bytes.subarray(0, at)
  }
}

/**
 * A text that differs when the file does. It has the time of the last change of the inode, which the kernel sets:
 * programs that copy files set the time of the last modification to whatever it was elsewhere.
 */
function stampOf({ ino, ctimeNs, size }: Pick<BigIntStats, 'ino' | 'ctimeNs' | 'size'>): string {
  return `${ino}:${ctimeNs}:${size}`
}

/** Resolves as the operation on a file does, or with undefined if there is no such file. */
export async function ifThere<T>(operation: Promise<T>): Promise<T | undefined> {
  try {
    return await operation
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

/** Makes the names in a directory durable. */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path)
  try {
    await directory.sync()
  } finally {
    await directory.close()
  }
}

function checkKind(stats: StatsBase<number>): void {
  if (!stats.isFile()) throw new Error(`it is ${kindOf(stats)}, not a regular file`)
}

function kindOf(stats: StatsBase<number> | StatsBase<bigint>): string {
  if (stats.isDirectory()) return 'a directory'
  if (stats.isFIFO()) return 'a FIFO'
  if (stats.isSymbolicLink()) return 'a symbolic link'
  return stats.isSocket() ? 'a socket' : 'a device'
}
