import { readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { openStore, type StoreSettings } from '../../../src/store/open.ts'
import { anInstance } from '../../support/fixtures/instance.ts'
import { directoryOfFile } from '../../support/fixtures/temporary-directory.ts'

const directory = directoryOfFile()

/** A server that no test reaches: its settings are refused first. */
const REDIS = { url: 'redis://192.0.2.1', region: 'gb1' }

test('a directory is opened without being written, and takes the limit of user-data', async () => {
  const store = await openStore({ url: `file:${directory}`, userDataMaxBytes: 3 })
  expect(readdirSync(directory)).toEqual([])
  expect(await store.put(anInstance(), Buffer.from('four'))).toMatchObject({
    kind: 'invalid',
    faults: [{ path: '/userData' }],
  })
  await store.close()
})

test('the limit of user-data is 16,384 bytes unless another is given', async () => {
  const store = await openStore({ url: `file:${directory}` })
  expect(await store.put(anInstance(), Buffer.alloc(16_385), { dryRun: true })).toMatchObject({
    kind: 'invalid',
    faults: [{ path: '/userData' }],
  })
  expect(await store.put(anInstance(), Buffer.alloc(16_384), { dryRun: true })).toMatchObject({ kind: 'published' })
})

describe('a store is not opened', () => {
  const keys = join(directory, '.keys')
  test.each<[string, StoreSettings, RegExp]>([
    ['at a URL of another kind', { url: 'mysql://r' }, /^url \(--store, IMDS_STORE\) must be/],
    ['without its region', { url: REDIS.url }, /^region \(--region, IMDS_REGION\) is not set/],
    [
      'with record keys for files',
      { url: `file:${directory}`, recordKeysFile: keys },
      /^recordKeysFile .* is for Redis/,
    ],
    ['with record keys that are missing', { ...REDIS, recordKeysFile: join(directory, 'none') }, /ENOENT/],
    [
      'with record keys that are malformed',
      { ...REDIS, recordKeysFile: keys },
      /\.keys has no NAME:BASE64-OF-32-BYTES in line 1$/,
    ],
  ])('%s', async (_what, settings, message) => {
    writeFileSync(keys, 'k1:S3CRET\n')
    const error = await openStore(settings).then(
      () => undefined,
      (thrown: unknown) => thrown as Error,
    )
    expect(error?.message).toMatch(message)
    expect(error?.message).not.toContain('S3CRET')
  })
})
