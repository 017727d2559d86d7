/** The kinds of store that tests of imdsctl use. */
import { join } from 'node:path'
import type { Test } from 'tap'
import { keyLines } from '../fixtures/record-keys.ts'
import { testDirectory } from '../test-directory.ts'
import { startRedis, type TestRedis } from './redis.ts'

/** The settings of a store, without its region. */
export interface KindSettings {
  readonly url: string
  readonly recordKeysFile?: string
}

/** Starts a Redis. `kinds`: the settings of a new store of each kind. The two in Redis are the same store. */
export async function startKinds(
  t: Test,
): Promise<{ redis: TestRedis; kinds: Readonly<Record<string, (t: Test) => KindSettings>> }> {
  const redis = await startRedis(t)
  const kinds = {
    Redis: () => ({ url: redis.url }),
    'Redis with keys': (t: Test) => ({
      url: redis.url,
      recordKeysFile: join(testDirectory(t, { k: keyLines('k1') }), 'k'),
    }),
    files: (t: Test) => ({ url: `file:${join(testDirectory(t), 'store')}` }),
  }
  return { redis, kinds }
}
