/** The kinds of store that tests of imdsctl use, and the Redis of the test file. */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keyLines } from '../fixtures/record-keys.ts'
import { testDirectory } from '../test-directory.ts'
import { startRedis } from './redis.ts'

/** The settings of a store, without its region. */
export interface KindSettings {
  readonly url: string
  readonly recordKeysFile?: string
}

export const redis = await startRedis(t)

/** The settings of a new store of each kind. The two in Redis are the same store. */
export const KINDS: Readonly<Record<string, (t: Test) => KindSettings>> = {
  Redis: () => ({ url: redis.url }),
  'Redis with keys': (t) => ({ url: redis.url, recordKeysFile: join(testDirectory(t, { k: keyLines('k1') }), 'k') }),
  files: (t) => ({ url: `file:${join(testDirectory(t), 'store')}` }),
}
