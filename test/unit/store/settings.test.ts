import { describe, expect, test } from 'vitest'
import {
  formatSettingFaults,
  parseStoreSettings,
  STORE_SETTINGS,
  type StoreSettings,
} from '../../../src/store/settings.ts'

const REDIS = { url: 'redis://r', region: 'gb1' }

test('a store of files needs its directory only, and has no region', () => {
  expect(parseStoreSettings({ url: 'file:/srv/imds' })).toEqual({
    ok: true,
    value: { kind: 'files', directory: '/srv/imds' },
  })
  expect(parseStoreSettings({ url: 'file:/srv/imds', region: 'g b' }).ok).toBe(true)
})

test('Redis is parsed with its region', () => {
  expect(parseStoreSettings(REDIS)).toMatchObject({
    ok: true,
    value: { kind: 'redis', shape: 'standalone', region: 'gb1' },
  })
})

describe('settings are refused, with the setting at fault', () => {
  test.each<[string, Partial<StoreSettings>, string[], string | undefined]>([
    ['without a URL', {}, ['url'], undefined],
    ['with a URL of another kind', { ...REDIS, url: 'mysql://r' }, ['url'], undefined],
    ['without a region', { url: REDIS.url }, ['region'], 'redis'],
    ['with an empty region', { ...REDIS, region: '' }, ['region'], 'redis'],
    ['with a region that would end the hash tag', { ...REDIS, region: 'gb1}' }, ['region'], 'redis'],
    ['with record keys for files', { url: 'file:/srv/imds', recordKeysFile: '/keys' }, ['recordKeysFile'], 'files'],
    ['with an authority and no TLS', { ...REDIS, caFile: '/ca' }, ['caFile'], 'redis'],
    [
      'with several faults',
      { url: 'rediss://r', certFile: '/c', sentinelPasswordFile: '/s' },
      ['region', 'certFile', 'sentinelPasswordFile'],
      'redis',
    ],
  ])('%s', (_what, settings, faulty, kind) => {
    const parsed = parseStoreSettings(settings)
    expect(parsed.ok ? [] : parsed.faults.map(({ setting }) => setting).sort()).toEqual([...faulty].sort())
    expect(parsed.ok ? 'ok' : parsed.kind).toBe(kind)
  })
})

test('invariant 9: a URL with a password is refused without repeating it, with the remedy', () => {
  const parsed = parseStoreSettings({ url: 'rediss://imds:S3CRET@r', region: 'g b' })
  expect(parsed.ok ? 'ok' : formatSettingFaults(parsed.faults)).toMatch(
    /^url \(--store, IMDS_STORE\) must not have a password in it, since other programs can read it: name its file in IMDS_REDIS_PASSWORD_FILE \(--password-file\); region .* must be one word/,
  )
})

test('a fault is reported by all three names of its setting: field, option and variable', () => {
  expect(
    formatSettingFaults([
      { setting: 'url', message: 'is not set' },
      { setting: 'recordKeysFile', message: 'is for Redis' },
    ]),
  ).toBe('url (--store, IMDS_STORE) is not set; recordKeysFile (--record-keys, IMDS_RECORD_KEYS_FILE) is for Redis')
})

test('no two settings share a variable or an option', () => {
  const all = Object.values(STORE_SETTINGS)
  expect(new Set(all.map(({ variable }) => variable)).size).toBe(all.length)
  const options = all.flatMap(({ flags }) => flags.split(/[ ,]+/).filter((flag) => flag.startsWith('-')))
  expect(new Set(options).size).toBe(options.length)
})
