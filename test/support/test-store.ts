/** The store of a test. */
import type { Test } from 'tap'
import { openStore, type Publisher, type StoreSettings } from '../../src/store/open.ts'

/** Opens a store that closes with the test. */
export async function openTestStore(t: Pick<Test, 'teardown'>, settings: StoreSettings): Promise<Publisher> {
  const store = await openStore(settings)
  t.teardown(() => store.close())
  return store
}
