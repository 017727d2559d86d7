/**
 * Where lines of the log go. A write never waits for a reader: if the journal stops reading, the event
 * loop, and with it every guest, would wait too. Lines wait in a buffer then; further ones are dropped and counted. A
 * line that cannot be written, as on a full disk, is dropped.
 */
import { fstatSync, writeSync } from 'node:fs'
import type { WriteStream } from 'node:tty'

/** The time between two attempts while lines wait, in ms. */
const RETRY_MS = 20
/** The longest time that `flushSync` waits for the reader, in ms. */
const FLUSH_TIMEOUT_MS = 1_000
/** The most bytes of lines that wait for the reader. */
const MAX_WAITING_BYTES = 1 << 20

interface LogOutput {
  /** Writes a line, or keeps it until the reader reads. */
  write(line: string): void
  /** Writes what waits. Blocks for at most a second. For the last lines before an exit. */
  flushSync(): void
}

/**
 * Writes lines to a file descriptor that does not block, or is a file. `formatLost`: the line that reports the number
 * of dropped lines.
 */
export function buildLogOutput(fd: number, formatLost: (count: number) => string): LogOutput {
  const waiting: Buffer[] = []
  let waitingBytes = 0
  let lost = 0
  let timer: NodeJS.Timeout | undefined

  const push = (bytes: Buffer) => {
    waiting.push(bytes)
    waitingBytes += bytes.length
  }
  /** Writes a line that waits, or its rest. False if the reader has to read first. */
  const writeLine = (index: number): boolean => {
    const bytes = waiting[index]!
    try {
      const count = writeSync(fd, bytes)
      waitingBytes -= count
      waiting[index] = bytes.subarray(count)
      return count === bytes.length || writeLine(index)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return false
      waitingBytes -= bytes.length // nowhere to report it
      return true
    }
  }
  /** True when nothing waits any more. */
  const writeWaiting = (): boolean => {
    let written = 0
    try {
      for (; written < waiting.length; written++) if (!writeLine(written)) return false
    } finally {
      waiting.splice(0, written)
    }
    if (lost === 0) return true
    push(Buffer.from(formatLost(lost)))
    lost = 0
    return writeWaiting()
  }
  const retry = () => {
    timer = writeWaiting() ? undefined : setTimeout(retry, RETRY_MS).unref()
  }
  return {
    write: (line) => {
      const bytes = Buffer.from(line)
      if (waitingBytes + bytes.length > MAX_WAITING_BYTES) lost++
      else push(bytes)
      if (timer === undefined) retry()
    },
    flushSync: () => {
      const end = performance.now() + FLUSH_TIMEOUT_MS
      const sleeper = new Int32Array(new SharedArrayBuffer(4))
      while (!writeWaiting() && performance.now() < end) Atomics.wait(sleeper, 0, 0, RETRY_MS)
    },
  }
}

/**
 * Makes writes to `fd`, the descriptor of a standard stream of this process, return at once if it is a pipe or a
 * socket. A file never blocks for long.
 */
export function neverBlock(fd: number, stream: () => WriteStream): void {
  const kind = fstatSync(fd)
  if (kind.isFIFO() || kind.isSocket()) stream() // Node makes it non-blocking when it creates the stream
}

/**
 * True if `journalStream`, the variable JOURNAL_STREAM of systemd, names the file of a descriptor: then the journal
 * reads it (systemd.exec(5)).
 */
export function isJournal(journalStream: string | undefined, fd: number): boolean {
  if (journalStream === undefined) return false
  const { dev, ino } = fstatSync(fd)
  return journalStream === `${dev}:${ino}`
}
