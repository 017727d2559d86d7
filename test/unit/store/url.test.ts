import { describe, expect, test } from 'vitest'
import { fileFaults, hasPassword, parseStoreUrl, type RedisFiles, type RedisStore } from '../../../src/store/url.ts'

describe('a Redis URL names its deployment shape', () => {
  const at = (host: string, port: number) => ({ host, port })
  test.each<[string, object]>([
    [
      'redis://r',
      { shape: 'standalone', tls: false, master: undefined, nodes: [{ host: 'r', port: 6379 }], database: 0 },
    ],
    ['redis://127.0.0.1:1/', { nodes: [{ host: '127.0.0.1', port: 1 }], database: 0 }],
    [
      'rediss://im%40ds@[fd00::1]:7000/3',
      { tls: true, nodes: [{ host: 'fd00::1', port: 7000 }], username: 'im@ds', database: 3 },
    ],
    [
      'redis-sentinel://s1,s2:1,[fd00::1]/main',
      { shape: 'sentinel', nodes: [at('s1', 26379), at('s2', 1), at('fd00::1', 26379)], master: 'main', database: 0 },
    ],
    ['rediss-sentinel://imds@s1/a%20b', { shape: 'sentinel', tls: true, username: 'imds', master: 'a b' }],
    [
      'redis-cluster://imds@n1,n2:7000',
      { shape: 'cluster', username: 'imds', nodes: [at('n1', 6379), at('n2', 7000)] },
    ],
    ['rediss-cluster://n1', { shape: 'cluster', tls: true, database: 0, master: undefined }],
    ['redis://:@r', { username: undefined }],
    ['redis://imds:@r', { username: 'imds', nodes: [{ host: 'r', port: 6379 }] }],
  ])('%s', (url, store) => expect(parseStoreUrl(url)).toMatchObject({ kind: 'redis', ...store }))
})

test.each([
  'redis://',
  'redis://a,b',
  'redis://r/db',
  'redis://r:0',
  'redis://r:70000',
  'redis://r?x=1',
  'redis://fd00::1',
  'redis://%zz@r',
  'redis:///run/redis.sock',
  'mysql://r',
  'redis-cluster://a/0',
  'redis-cluster://a,',
  'redis-sentinel://a,b',
  'redis-sentinel://a/b/c',
  'redis+sentinel://a/b',
  'file:',
  'xredis://r',
  'redis://r/file:',
  'file://other-host/store',
  'file:///a%2Fb',
  '',
])('%s is not a store', (url) => expect(parseStoreUrl(url)).toBeUndefined())

test.each([
  'redis://imds:secret@r',
  'rediss://:a:b@c@r:1/3',
  'redis-sentinel://imds:secret@s1,s2:1/main',
  'rediss-cluster://imds:p%40ss@n1',
  'redis://imds:secret@not a host',
])('%s has a password, so it is no store', (url) => {
  expect([hasPassword(url), parseStoreUrl(url)]).toEqual([true, undefined])
})

test.each(['redis://imds@r', 'redis://:@r', 'redis-sentinel://s1:1,s2:2/main@1', 'file:a:b@c', ''])(
  '%s has no password',
  (url) => expect(hasPassword(url)).toBe(false),
)

test.each([
  ['file:/var/lib/imds/store', '/var/lib/imds/store'],
  ['file:store', 'store'],
  ['file:///var/lib/imds%20store', '/var/lib/imds store'],
])('%s is the directory %s', (url, directory) => expect(parseStoreUrl(url)).toEqual({ kind: 'files', directory }))

describe('files for Redis must fit its URL and each other', () => {
  const NONE: RedisFiles = {
    passwordFile: undefined,
    sentinelPasswordFile: undefined,
    caFile: undefined,
    certFile: undefined,
    keyFile: undefined,
  }
  test.each<[string, Partial<RedisFiles>, readonly string[]]>([
    ['redis://r', {}, []],
    ['redis://r', { passwordFile: 'f' }, []],
    [
      'redis://r',
      { caFile: 'f', certFile: 'f', keyFile: 'f' },
      ['caFile is for TLS', 'certFile is for TLS', 'keyFile is for TLS'],
    ],
    ['rediss://r', { caFile: 'f', certFile: 'f', keyFile: 'f' }, []],
    ['rediss://r', { certFile: 'f' }, ['certFile also needs the file of its private key']],
    ['rediss://r', { keyFile: 'f' }, ['keyFile also needs the file of its certificate']],
    ['redis://r', { sentinelPasswordFile: 'f' }, ['sentinelPasswordFile is for redis-sentinel://']],
    ['redis-sentinel://r/main', { sentinelPasswordFile: 'f' }, []],
  ])('%s with %j', (url, files, faults) => {
    const found = fileFaults(parseStoreUrl(url) as RedisStore, { ...NONE, ...files })
    expect(found.map(({ file, message }) => `${file} ${message}`)).toEqual(
      faults.map((fault) => expect.stringContaining(fault) as unknown),
    )
  })
})
