import { describe, expect, onTestFinished, test, vi } from 'vitest'
import { parseTarget, TargetCache, type Route } from '../../../src/metadata/target.ts'
import { NO_VERSION, LATEST, VERSIONS } from '../../../src/metadata/versions.ts'

const IDENTITY_TOKEN = '/latest/dynamic/instance-identity/token'

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
    ['/latest/dynamic/', '/{version}/dynamic', 'dynamic'],
    ['/latest/dynamic/instance-identity', '/{version}/dynamic', 'dynamic/instance-identity'],
    ['//latest/dynamic/instance-identity/token/', IDENTITY_TOKEN, 'dynamic/instance-identity/token'],
    ['/latest/api/token', '/latest/api/token', 'api/token'],
    ['/latest/reports/boot', '/latest/reports', 'reports/boot'],
    ['/latest//reports/a/', '/latest/reports', 'reports/a'],
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
  ['/openstack/2018-08-27/network_data.json', 'network'],
  ['/nocloud/meta-data', 'meta-data/'],
  ['/nocloud/user-data', 'user-data'],
  ['/nocloud/', 'other'],
  ['/latest/dynamic', 'identity'],
  ['/latest/dynamic/instance-identity/document', 'identity'],
  ['/latest/dynamic/instance-identity/token?audience=a', 'identity token'],
  ['/x', 'other'],
])('H10: the kind of %s is %s', (target, topic) => {
  expect(parseTarget(target)).toMatchObject({ ok: true, value: { topic } })
})

test.each([
  ['/nocloud', '/nocloud', 'nocloud'],
  ['//nocloud/meta-data/', '/nocloud', 'nocloud/meta-data'],
  ['/openstack/latest/user_data/x', '/openstack', 'openstack/latest/user_data/x'],
])('H5, H6: %s is in a tree beside that of EC2', (target, route, path) => {
  expect(parseTarget(target)).toMatchObject({ ok: true, value: { route, version: NO_VERSION, path } })
})

describe('H1, H2: the query', () => {
  const queryOf = (query: string) => {
    const parsed = parseTarget(`/latest/meta-data/mac?${query}`)
    return parsed.ok ? parsed.value.query : parsed.faults
  }
  test.each([
    ['recursive=true', { recursive: true, wait: undefined }],
    ['wait_for_change=true', { recursive: false, wait: { lastEtag: undefined, timeoutMs: 300_000 } }],
    [
      'a=b&wait_for_change=true&last_etag=%22x%22&timeout_sec=600#f',
      { recursive: false, wait: { lastEtag: 'x', timeoutMs: 600_000 } },
    ],
    [
      'wait_for_change=true&recursive=true&timeout_sec=1',
      { recursive: true, wait: { lastEtag: undefined, timeoutMs: 1_000 } },
    ],
    ['wait_for_change=false', undefined],
    ['recursive=TRUE', undefined],
    ['timeout_sec=0', undefined],
    ['wait_for_change=true&timeout_sec=601', ['has a timeout_sec that is not a whole number from 1 to 600']],
  ])('%s', (query, expected) => expect(queryOf(query)).toEqual(expected))
})

describe('a target outside of our paths is unknown', () => {
  test.each([
    '/nonsense',
    '/2021-01-04/meta-data',
    '/http://h/latest',
    '1http://h/latest',
    'http:/latest',
    '/%68ttp://h/latest',
    '/openstacks',
    '/nocloud2/meta-data',
  ])('%s', (target) => {
    expect(parseTarget(target)).toMatchObject({ ok: true, value: { route: 'unknown', version: LATEST, path: '' } })
  })
  test.each(['meta-datum', 'meta-data2', 'user-data/x', 'api', 'api/token/x', 'dynamics'])(
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

test.each([
  ['?audience=vault', 'vault'],
  ['?x=1&audience=https%3A%2F%2Fvault.example.com%2F%3Fa&y#audience=b', 'https://vault.example.com/?a'],
  [`?audience=${'x'.repeat(255)}`, 'x'.repeat(255)],
  [`?audience=${'x'.repeat(256)}`, undefined],
  ['', undefined],
  ['?', undefined],
  ['?audience', undefined],
  ['?audience=', undefined],
  ['?audience=a+b', undefined],
  ['?audience=%C3%BC', undefined],
  ['?audience=a%0Ab', undefined],
  ['?audience=a&audience=a', undefined],
  ['?audience=a&wait_for_change=true&recursive=true', 'a'],
])('H4: the audience of %s is %s', (query, audience) => {
  const parsed = parseTarget(`${IDENTITY_TOKEN}${query}`)
  expect(parsed).toMatchObject({ ok: true, value: { route: IDENTITY_TOKEN } })
  expect(parsed.ok && [parsed.value.audience, parsed.value.query]).toEqual([audience, undefined])
})

test('H4: only the newest version has identity tokens', () => {
  expect(parseTarget('/2021-01-03/dynamic/instance-identity/token?audience=a')).toMatchObject({
    value: { route: '/{version}/dynamic' },
  })
})

test('A9: a path is decoded at once, whatever the number of its segments', () => {
  const decode = vi.spyOn(globalThis, 'decodeURIComponent')
  onTestFinished(() => void vi.restoreAllMocks())
  expect(parseTarget(`/latest/meta-data${'/%61'.repeat(3_700)}/`)).toMatchObject({
    value: { route: '/{version}/meta-data', path: `meta-data${'/a'.repeat(3_700)}` },
  })
  expect(decode).toHaveBeenCalledTimes(1)
})

test.each([
  [`${IDENTITY_TOKEN}?audience=a${'&b'.repeat(7_400)}`, { audience: 'a' }, 1],
  [`${IDENTITY_TOKEN}?audience=a${'&audience=a'.repeat(1_400)}`, {}, 1],
  [`/latest/?wait_for_change=true&recursive=true${'&b'.repeat(7_400)}`, { query: { recursive: true } }, 2],
])('A9: of a query, only parameters with a meaning are parsed (%#)', (target, value, count) => {
  const parsed: string[] = []
  vi.stubGlobal(
    'URLSearchParams',
    class extends URLSearchParams {
      constructor(text: string) {
        parsed.push(text)
        super(text)
      }
    },
  )
  onTestFinished(() => void vi.unstubAllGlobals())
  expect(parseTarget(target)).toMatchObject({ ok: true, value })
  expect(parsed).toHaveLength(count)
  expect(parsed.join('').length).toBeLessThan(100)
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

test('a target with an audience is not cached, since guests can make any number of them', () => {
  const targets = new TargetCache()
  expect(targets.parse(`${IDENTITY_TOKEN}?audience=a`)).not.toBe(targets.parse(`${IDENTITY_TOKEN}?audience=a`))
})

test('a target is parsed once, and again after the cache was cleared', () => {
  const targets = new TargetCache()
  const first = targets.parse('/latest/meta-data/')
  expect(targets.parse('/latest/meta-data/')).toBe(first)
  for (let i = 0; i < 1_024; i++) targets.parse(`/latest/${i}`)
  expect(targets.parse('/latest/meta-data/')).not.toBe(first)
})
