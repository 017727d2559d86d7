/** A daemon that follows a file store. */
import type { Test } from 'tap'
import type { Publisher } from '../../../src/store/open.ts'
import { testDirectory } from '../test-directory.ts'
import { openTestStore } from '../test-store.ts'
import { startDaemon, until, type TestDaemon } from './daemon.ts'

/** A daemon, and the store that it follows. */
export interface Served {
  readonly daemon: TestDaemon
  readonly store: Publisher
  readonly url: string
}

/** Fills a new file store, starts a daemon on it and waits until it is ready. `env` adds to its environment. */
export async function startServing(
  t: Test,
  fill: (store: Publisher) => Promise<unknown>,
  env: Readonly<Record<string, string>> = {},
): Promise<Served> {
  const url = `file:${testDirectory(t)}`
  const store = await openTestStore(t, { url })
  await fill(store)
  const daemon = await startDaemon(t, { IMDS_STORE: url, ...env })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the daemon to be ready')
  return { daemon, store, url }
}
