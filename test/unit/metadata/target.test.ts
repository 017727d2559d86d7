import { describe, expect, test } from 'vitest'
import { parseTarget, TargetCache, type Route } from '../../../src/metadata/target.ts'
import { LATEST, VERSIONS } from '../../../src/metadata/versions.ts'

describe('A3: all spellings of a target name one path', () => {
  const ROWS: [string, Route, string][] = [
    ['/', '/', ''],
    ['//', '/', ''],
    ['', '/', ''],
    ['/latest', '/{version}', ''],
    ['/latest/', '/{version}', ''],
    ['/latest/meta-data/mac', '/{version}/meta-data', 'meta-data/mac'],
    ['//latest//meta-data//mac//', '/{version}/meta-data', 'meta-data/mac'],
    ['latest/meta-data', '/{version}/meta-data', 'meta-data'],
    ['/latest/meta-data/%6Dac', '/{version}/meta-data', 'meta-data/mac'],
    ['/latest/meta-data/a%2Fb', '/{version}/meta-data', 'meta-data/a%2Fb'],
    ['/latest/meta-data?recursive=true', '/{version}/meta-data', 'meta-data'],
    ['/latest/meta-data#/x?y', '/{version}/meta-data', 'meta-data'],
    ['/latest/user-data', '/{version}/user-data', 'user-data'],
    ['/openstack/latest/user_data', '/openstack/latest/user_data', 'user-data'],
    ['/latest/api/token', '/latest/api/token', 'api/token'],
    ['/latest//api/token/', '/latest/api/token', 'api/token'],
    ['http://169.254.169.254/latest/meta-data/mac', '/{version}/meta-data', 'meta-data/mac'],
    ['http://169.254.169.254:80/', '/', ''],
    ['HTTPS://h', '/', ''],
    ['http://h?x=/latest', '/', ''],
    ['http://h#/latest', '/', ''],
    ['http:///latest', '/{version}', ''],
    ['a+b.c-1://user@host/latest', '/{version}', ''],
  ]
  test.each(ROWS)('%s is %s', (target, route, path) => {
    expect(parseTarget(target)).toMatchObject({ ok: true, value: { route, version: LATEST, path } })
  })
})

test('A2: a target names a version', () => {
  const version = VERSIONS.indexOf('2021-01-03')
  expect(parseTarget('/2021-01-03/meta-data/mac')).toMatchObject({
    ok: true,
    value: { route: '/{version}/meta-data', version, path: 'meta-data/mac' },
  })
  expect(parseTarget('/2021-01-03/api/token')).toMatchObject({
    ok: true,
    value: { route: '/{version}/api/token', version, path: 'api/token' },
  })
})

test.each([
  ['/', 'versions'],
  ['/latest/', 'versions'],
  ['/latest/api/token', 'token'],
  ['/2021-01-03/api/token', 'token'],
  ['/2009-04-04/meta-data/', 'meta-data/'],
  ['/2009-04-04/meta-data/instance-id', 'instance-id'],
  ['/latest/meta-data/local-hostname', 'hostname'],
  ['/latest/meta-data/public-keys/0/openssh-key', 'public-keys'],
  ['/latest/meta-data/network/interfaces/macs/', 'network'],
  ['/latest/meta-data/placement/region', 'placement'],
  ['/latest/meta-data/tags/instance/a', 'tags'],
  ['/latest/meta-data/constructor', 'other metadata'],
  ['/latest/user-data', 'user-data'],
  ['/openstack/latest/user_data', 'user-data'],
  ['/latest/dynamic', 'other'],
  ['/x', 'other'],
])('H10: in a boot trace %s is %s', (target, topic) => {
  expect(parseTarget(target)).toMatchObject({ ok: true, value: { topic } })
})

describe('a target outside of our paths is unknown', () => {
  test.each([
    '/nonsense',
    '/2021-01-04/meta-data',
    '/http://h/latest',
    '1http://h/latest',
    'http:/latest',
    '/%68ttp://h/latest',
    '/openstack',
    '/openstack/latest/user_data/x',
  ])('%s', (target) => {
    expect(parseTarget(target)).toMatchObject({ ok: true, value: { route: 'unknown', version: LATEST, path: '' } })
  })
  test.each(['meta-datum', 'meta-data2', 'user-data/x', 'api', 'api/token/x', 'dynamic'])(
    '/latest/%s, below a version',
    (path) => {
      expect(parseTarget(`/latest/${path}`)).toMatchObject({
        ok: true,
        value: { route: 'unknown', version: LATEST, path },
      })
    },
  )
})

test.each(['/%', '/latest/%zz', '/latest/%ff', '/latest/meta-data/%C3'])('A7: %s is malformed', (target) => {
  expect(parseTarget(target).ok).toBe(false)
})

const TEXTS = [
  '/',
  '/latest',
  '/latest//meta-data/',
  '/2009-04-04/meta-data/instance-id',
  '/latest/api/token',
  '/nonsense',
  `/latest/${'x'.repeat(300)}`,
  '/latest/%zz',
]

test('a cached target equals one that is parsed again', () => {
  const targets = new TargetCache()
  for (const text of [...TEXTS, ...TEXTS]) expect(targets.parse(text)).toEqual(parseTarget(text))
})

test('a target is parsed once, and again after the cache was cleared', () => {
  const targets = new TargetCache()
  const first = targets.parse('/latest/meta-data/')
  expect(targets.parse('/latest/meta-data/')).toBe(first)
  for (let i = 0; i < 1_024; i++) targets.parse(`/latest/${String(i)}`)
  expect(targets.parse('/latest/meta-data/')).not.toBe(first)
})
