/** A pipe that nobody reads, for unit tests. */
import { execFileSync } from 'node:child_process'
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'

/** Opens a pipe whose writes do not block, and gives a function that returns what is in it. The test closes it. */
export function aPipe(): { readonly fd: number; readonly read: () => string } {
  const directory = mkdtempSync(join(tmpdir(), 'imds-log-'))
  const fifo = join(directory, 'fifo')
  execFileSync('mkfifo', [fifo])
  const fd = openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK)
  onTestFinished(() => {
    closeSync(fd)
    rmSync(directory, { recursive: true })
  })
  const read = () => {
    const chunk = Buffer.alloc(1 << 17)
    try {
      return chunk.toString('latin1', 0, readSync(fd, chunk))
    } catch {
      return '' // EAGAIN: nothing is in the pipe now
    }
  }
  return { fd, read }
}
