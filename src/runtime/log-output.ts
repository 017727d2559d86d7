/**
 * Where lines of the log and audit lines go. A write never waits for a reader: if the journal stops reading, the event
 * loop, and with it every guest, would wait too. Lines wait in a buffer then; further ones are dropped and counted. A
 * line that cannot be written, as on a full disk, is dropped.
 */
import { fstatSync, writeSync } from 'node:fs'
import type { WriteStream } from 'node:tty'

/** The most bytes of log lines that wait for the reader. */
const MAX_WAITING_BYTES = 1 << 20
/** The time between two attempts while lines wait, in ms. */
const RETRY_MS = 20
/** The longest time that `flushSync` waits for the reader, in ms. */
const FLUSH_TIMEOUT_MS = 1_000

/**
 * `maxWaitingBytes`: the most bytes of lines that wait for the reader, default 1 MiB. `failed` is called for each line
 * that cannot be written.
 */
export interface LogOutputOptions {
  readonly maxWaitingBytes?: number
  readonly failed?: (error: Error) => void
}

/**
 * Writes lines to a file descriptor that does not block, or is a file. `formatLost`: the line that reports the number
 * of dropped lines.
 */
export class LogOutput {
  readonly #fd: number
  readonly #formatLost: (count: number) => string
  readonly #maxWaitingBytes: number
  readonly #failed: (error: Error) => void
  #waiting: Buffer[] = []
  #waitingBytes = 0
  #lost = 0
  #timer: NodeJS.Timeout | undefined

  constructor(
    fd: number,
    formatLost: (count: number) => string,
    {
      maxWaitingBytes = MAX_WAITING_BYTES,
      failed = () => undefined, // there is nowhere to report it
    }: LogOutputOptions = {},
  ) {
    this.#fd = fd
    this.#formatLost = formatLost
    this.#maxWaitingBytes = maxWaitingBytes
    this.#failed = failed
  }

  /** Writes a line, or keeps it until the reader reads. */
  write(line: string): void {
    const bytes = Buffer.from(line)
    if (this.#waitingBytes + bytes.length > this.#maxWaitingBytes) this.#lost++
    else this.#push(bytes)
    if (this.#timer === undefined) this.#continue()
  }

  /** Writes what waits. Blocks for at most a second. For the last lines before an exit. */
  flushSync(): void {
    const end = performance.now() + FLUSH_TIMEOUT_MS
    const sleeper = new Int32Array(new SharedArrayBuffer(4))
    while (!this.#writeWaiting() && performance.now() < end) Atomics.wait(sleeper, 0, 0, RETRY_MS)
  }

  #push(bytes: Buffer): void {
    this.#waiting.push(bytes)
    this.#waitingBytes += bytes.length
  }

  #continue(): void {
    this.#timer = this.#writeWaiting()
      ? undefined
      : setTimeout(() => {
          this.#continue()
        }, RETRY_MS).unref()
  }

  /** True when nothing waits any more. */
  #writeWaiting(): boolean {
    let written = 0
    try {
      for (; written < this.#waiting.length; written++) if (!this.#writeLine(written)) return false
    } finally {
      this.#waiting.splice(0, written)
    }
    if (this.#lost === 0) return true
    this.#push(Buffer.from(this.#formatLost(this.#lost)))
    this.#lost = 0
    return this.#writeWaiting()
  }

  /** Writes a line that waits, or its rest. False if the reader has to read first. */
  #writeLine(index: number): boolean {
    const bytes = this.#waiting[index]!
    try {
      const count = writeSync(this.#fd, bytes)
      this.#waitingBytes -= count
      this.#waiting[index] = bytes.subarray(count)
      return count === bytes.length || this.#writeLine(index)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return false
      this.#waitingBytes -= bytes.length
      this.#failed(error as Error)
      return true
    }
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
