/**
 * A publisher to a file store as a separate process.
 *
 *   file-writer.ts DIRECTORY TEXT     publishes the next revision with TEXT as user-data
 */
import { FILE_SYSTEM } from '../../../src/store/files/operations.ts'
import { openFilePublisher } from '../../../src/store/files/publisher.ts'
import { anInstance, loopback } from '../fixtures/instance.ts'

const [directory = '', text = ''] = process.argv.slice(2)
const store = openFilePublisher(directory, 16384, FILE_SYSTEM, Date.now)
const { revision } = ((await store.get('srv-abcde'))?.document ?? { revision: 0 }) as { revision: number }
await store.put(
  anInstance({ revision: revision + 1, interfaces: loopback(), fqdn: `r${revision + 1}.example.com` }),
  Buffer.from(text),
)
