/**
 * A publisher to a file store as a separate process, for tests that kill it or run several at once.
 *
 *   file-writer.ts DIRECTORY change TEXT     publishes the next revision with TEXT as user-data and prints `done`
 *   file-writer.ts DIRECTORY wait TEXT       the same, but prints `up` and waits when the change is committed
 *   file-writer.ts DIRECTORY race MARK LAST  prints `up`, waits for a line, puts revisions up to LAST with MARK as user-data,
 *                                            and prints the revisions that were published
 */
import { once } from 'node:events'
import { FILE_SYSTEM, type FileOperations } from '../../../src/store/files/operations.ts'
import { openFilePublisher } from '../../../src/store/files/publisher.ts'
import type { Publisher } from '../../../src/store/publisher.ts'
import { anInstance, loopback } from '../fixtures/instance.ts'

const [directory = '', mode, text = '', last] = process.argv.slice(2)
const record = (revision: number) => anInstance({ revision, interfaces: loopback(), fqdn: `r${revision}.example.com` })

/** The operations on files, which wait before the directory is synced: a change is committed then. */
const WAITING: FileOperations = {
  ...FILE_SYSTEM,
  sync: async () => {
    console.log('up')
    // a promise that never settles would be garbage-collected, which would free the lock
    await once(process.stdin.resume(), 'end')
    process.exit()
  },
}

if (mode === 'change' || mode === 'wait') {
  const store = openFilePublisher(directory, 16384, mode === 'wait' ? WAITING : FILE_SYSTEM, Date.now)
  await store.put(record((await revisionOf(store)) + 1), Buffer.from(text))
  console.log('done')
} else {
  const store = openFilePublisher(directory, 16384, FILE_SYSTEM, Date.now)
  const published: number[] = []
  console.log('up')
  await once(process.stdin, 'data')
  for (let revision = 1; revision <= Number(last);) {
    if ((await store.put(record(revision), Buffer.from(text))).kind === 'published') published.push(revision)
    revision = (await revisionOf(store)) + 1
  }
  console.log(published.join(' '))
  process.stdin.destroy()
}

async function revisionOf(store: Publisher): Promise<number> {
  return ((await store.get('srv-abcde'))?.document as { revision: number } | undefined)?.revision ?? 0
}
