import { expect, test } from 'vitest'
import { StoreOpener } from '../../../../src/imds-api/publish/store-opener.ts'
import type { Publisher } from '../../../../src/store/publisher.ts'

test('opens its store once, at the first use, and closes it', async () => {
  const calls: string[] = []
  const store = { close: () => Promise.resolve(void calls.push('close')) } as unknown as Publisher
  const opener = new StoreOpener(() => {
    calls.push('open')
    return Promise.resolve(store)
  })
  expect(calls).toEqual([])
  expect(await Promise.all([opener.open(), opener.open()])).toEqual([store, store])
  await opener.close()
  expect(calls).toEqual(['open', 'close'])
})

test('tries again after a failure', async () => {
  const store = {} as Publisher
  let failures = 1
  const opener = new StoreOpener(() => (failures-- > 0 ? Promise.reject(new Error('away')) : Promise.resolve(store)))
  await expect(opener.open()).rejects.toThrow('away')
  expect(await opener.open()).toBe(store)
})

test('a store that was never open, or could not be opened, needs no closing', async () => {
  const opener = new StoreOpener(() => Promise.reject(new Error('away')))
  await opener.close()
  await expect(opener.open()).rejects.toThrow('away')
  await opener.close()
})
