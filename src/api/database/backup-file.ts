/** The file of a backup: written as a whole or not at all, and read line by line. */
import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, openSync, renameSync, rmSync } from 'node:fs'
import { dirname } from 'node:path'

/** The longest line. A row has a config map of 1 MiB at most, or user-data of 16 KiB. */
const LINE_MAX_BYTES = 64 << 20

/**
 * Writes a file with mode 0600 by a task that gets its descriptor, and puts it in the place of an older one when it is
 * on disk. If the task rejects, the older one stays. A kill leaves FILE.RANDOM.new.
 */
export async function replaceFile(path: string, write: (fd: number) => Promise<void>): Promise<void> {
  const temporary = `${path}.${randomBytes(4).toString('hex')}.new`
  const fd = openSync(temporary, 'wx', 0o600)
  try {
    await write(fd)
    fsyncSync(fd)
    renameSync(temporary, path)
    const directory = openSync(dirname(path), 'r')
    fsyncSync(directory)
    closeSync(directory)
  } catch (error) {
    rmSync(temporary, { force: true })
    throw error
  } finally {
    closeSync(fd)
  }
}

/**
 * The lines of a stream, without their line feeds. What follows the last line feed is no line: it may be the half of
 * one.
 */
export async function* linesOf(stream: AsyncIterable<Buffer>): AsyncGenerator<string> {
  let rest: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream) {
    let from = 0
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      yield Buffer.concat([...rest, chunk.subarray(from, end)]).toString()
      ;[rest, bytes, from] = [[], 0, end + 1]
    }
    rest.push(chunk.subarray(from))
    bytes += chunk.length - from
    if (bytes > LINE_MAX_BYTES) return
  }
}
