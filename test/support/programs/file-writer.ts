/**
 * A publisher to a file store as a separate process, for tests that kill it or run several at once.
 *
 *   file-writer.ts DIRECTORY change WHAT HALT STEP   makes one change and prints `done`. At step STEP it kills itself (HALT is `kill`), or
 *                                                    prints `up` and waits (HALT is `wait`)
 *   file-writer.ts DIRECTORY race MARK LAST          prints `up`, waits for a line, puts revisions up to LAST with MARK as user-data, and prints
 *                                                    the revisions that were published
 *
 * WHAT is `set TEXT`, `none` or `remove`. The steps are the operations on files; creating a file has a second step, when half of
 * it is written.
 */
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { FILE_SYSTEM, type FileOperations } from '../../../src/store/files/operations.ts'
import { openFilePublisher } from '../../../src/store/files/publisher.ts'
import type { Publisher } from '../../../src/store/publisher.ts'
import { anInstance } from '../fixtures/instance.ts'

const [directory = '', mode, ...rest] = process.argv.slice(2)
const record = (revision: number) =>
  anInstance({
    revision,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
    fqdn: `r${String(revision)}.example.com`,
  })

if (mode === 'change') {
  const [what = '', halt, step] = rest
  const store = openFilePublisher(directory, 16384, halting(halt === 'wait', Number(step)), Date.now)
  const revision = await revisionOf(store)
  if (what === 'remove') await store.remove('srv-abcde')
  else await store.put(record(revision + 1), what === 'none' ? 'none' : Buffer.from(what.replace('set ', '')))
  console.log('done')
} else {
  const [mark = '', last] = rest
  const store = openFilePublisher(directory, 16384, FILE_SYSTEM, Date.now)
  const published: number[] = []
  console.log('up')
  await once(process.stdin, 'data')
  for (let revision = 1; revision <= Number(last);) {
    if ((await store.put(record(revision), Buffer.from(mark))).kind === 'published') published.push(revision)
    revision = (await revisionOf(store)) + 1
  }
  console.log(published.join(' '))
  process.stdin.destroy()
}

async function revisionOf(store: Publisher): Promise<number> {
  return ((await store.get('srv-abcde'))?.document as { revision: number } | undefined)?.revision ?? 0
}

/** The operations on files, which halt before a step. */
function halting(waits: boolean, step: number): FileOperations {
  let count = 0
  const next = async () => {
    if (++count !== step) return
    if (waits) console.log('up')
    else process.kill(process.pid, 'SIGKILL')
    // a promise that never settles would be garbage-collected, which would free the lock
    await once(process.stdin.resume(), 'end')
    process.exit()
  }
  return {
    create: async (path, content) => {
      await next()
      if (count + 1 === step) writeFileSync(path, content.slice(0, content.length / 2))
      await next()
      await FILE_SYSTEM.create(path, content)
    },
    rename: async (from, to) => {
      await next()
      await FILE_SYSTEM.rename(from, to)
    },
    remove: async (path) => {
      await next()
      await FILE_SYSTEM.remove(path)
    },
    sync: async (path) => {
      await next()
      await FILE_SYSTEM.sync(path)
    },
  }
}
