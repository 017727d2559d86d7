import { expect, test } from 'vitest'
import { LATEST, VERSIONS } from '../../../../src/metadata/versions.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { aGuestServer, parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const MAC = '02:24:19:00:00:ee'
const mapped = {
  id: 'int-ds42k',
  macAddress: MAC,
  ipv4Addresses: ['10.0.0.2/30'],
  cloudIps: [{ id: 'cip-a', publicIpv4: '198.51.100.7', fqdn: 'cip-a.example.com' }],
}
const unmapped = { ...mapped, cloudIps: [] }
const at = (address: string, change: Record<string, unknown> = {}) =>
  anInstance({ interfaces: [{ id: 'int-x', macAddress: MAC, ipv4Addresses: [address] }], ...change })

test('B4: a change replaces the whole tree', async () => {
  const guest = aGuestServer()
  guest.put(anInstance(), Buffer.from('one'))
  expect((await guest.ask('/latest/user-data')).text).toBe('one')
  guest.put(anInstance({ fqdn: 'new.example.com', revision: 2 }), Buffer.from('two'))
  expect((await guest.ask('/latest/user-data')).text).toBe('two')
  expect((await guest.ask('/latest/meta-data/hostname')).text).toBe('new.example.com')
})

test('B5: what a change removes still answers for 60 s, unlisted, leaf and directory alike', async () => {
  const guest = aGuestServer()
  guest.put(anInstance({ interfaces: [mapped] }))
  await guest.ask('/latest/meta-data/')
  guest.put(anInstance({ interfaces: [unmapped], revision: 2, publicKeys: [] }))
  expect((await guest.ask('/latest/meta-data/')).text).not.toMatch(/public-ipv4|public-keys/)
  const gone = [
    'public-ipv4',
    'public-keys/',
    'public-keys/0/openssh-key',
    'public-keys/usr-xl7gd/openssh-key',
    `network/interfaces/macs/${MAC}/ipv4-associations/198.51.100.7`,
  ]
  for (const [ms, status] of [
    [59_999, 200],
    [60_000, 404],
  ] as const) {
    guest.clock.ms = ms
    for (const path of gone)
      expect([path, (await guest.ask(`/latest/meta-data/${path}`)).status]).toEqual([path, status])
  }
})

test('B5: what each of two changes in one minute removes still answers', async () => {
  const guest = aGuestServer()
  guest.put(anInstance({ interfaces: [mapped] }))
  await guest.ask('/latest/meta-data/')
  guest.put(anInstance({ interfaces: [unmapped], revision: 2 }))
  await guest.ask('/latest/meta-data/')
  guest.clock.ms = 30_000
  guest.put(anInstance({ interfaces: [unmapped], publicKeys: [], revision: 3 }))
  expect((await guest.ask('/latest/meta-data/public-ipv4')).text).toBe('198.51.100.7')
  expect((await guest.ask('/latest/meta-data/public-keys/')).text).toBe('0=usr-xl7gd')
  guest.clock.ms = 60_000
  expect((await guest.ask('/latest/meta-data/public-ipv4')).status).toBe(404)
  expect((await guest.ask('/latest/meta-data/public-keys/')).text).toBe('0=usr-xl7gd')
})

test('E3: removed user-data and vendor data are gone at once', async () => {
  const guest = aGuestServer()
  const options = { openstack: 'enabled' }
  const files = ['latest/user-data', 'nocloud/user-data', 'openstack/latest/user_data']
    .concat('nocloud/vendor-data', 'openstack/latest/vendor_data.json')
    .map((path) => `/${path}`)
  const withSecret = async () => {
    const texts = await Promise.all(files.map(async (path) => (await guest.ask(path)).text))
    return files.filter((_path, i) => texts[i]!.includes('secret'))
  }
  guest.put(anInstance({ vendorData: '# secret', options }), Buffer.from('secret'))
  expect(await withSecret()).toEqual(files)
  guest.put(anInstance({ options, revision: 2 }))
  expect(await withSecret()).toEqual([])
  expect((await guest.ask('/latest/user-data')).status).toBe(404)
})

test('sealed user-data is gone at once, in every version and listing; unsealed it is back', async () => {
  const guest = aGuestServer()
  const aliases = [
    ...VERSIONS.map((version) => `/${version}/user-data`),
    '/latest/user-data/',
    '//latest//user-data',
    '/openstack/latest/user_data',
  ]
  const statuses = async () => new Set(await Promise.all(aliases.map(async (path) => (await guest.ask(path)).status)))
  const listings = async () =>
    (await Promise.all(VERSIONS.map(async (version) => (await guest.ask(`/${version}/`)).text))).join('\n')
  guest.put(anInstance(), Buffer.from('secret'))
  expect([...(await statuses())]).toEqual([200])
  guest.put(anInstance({ revision: 2, sealedAt: '2026-11-20T15:04:05Z' }), Buffer.from('secret'))
  expect([...(await statuses())]).toEqual([404])
  expect(await listings()).not.toContain('user-data')
  expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(200)
  guest.put(anInstance({ revision: 3, sealedAt: '2999-01-01T00:00:00+01:00' }), Buffer.from('other'))
  expect([...(await statuses())]).toEqual([404])
  guest.put(anInstance({ revision: 4 }), Buffer.from('secret'))
  expect([...(await statuses())]).toEqual([200])
})

/** Each option and what else takes something away: the record with it, the record without, and paths that end. */
const TAKEN: Record<string, readonly [Record<string, unknown>, Record<string, unknown>, readonly string[], number]> = {
  httpTokens: [{}, { options: { httpTokens: 'required' } }, ['/latest/meta-data/instance-id'], 401],
  httpEndpoint: [{}, { options: { httpEndpoint: 'disabled' } }, ['/latest/meta-data/instance-id'], 403],
  instanceMetadataTags: [
    { tags: { a: 'x' }, options: { instanceMetadataTags: 'enabled' } },
    { tags: { a: 'x' } },
    ['tags', 'tags/instance', 'tags/instance/a'].map((path) => `/latest/meta-data/${path}`),
    404,
  ],
  openstack: [{ options: { openstack: 'enabled' } }, {}, ['/openstack/latest/meta_data.json', '/openstack'], 404],
  reports: [{ options: { reports: 'enabled' } }, {}, ['/latest/reports/a'], 404],
  seal: [{}, { sealedAt: '2026-11-20T15:04:05Z' }, ['/latest/user-data', '/openstack/latest/user_data'], 404],
}

/** The hop limit is of connections, and IPv6 of peers (test/unit/imdsd/guest/identify.test.ts). */
const PATHLESS = ['httpPutResponseHopLimit', 'httpProtocolIpv6']

test.each(Object.entries(TAKEN))(
  'E3: what %s takes away ends at once',
  async (_what, [before, after, paths, status]) => {
    const guest = aGuestServer()
    const statuses = async () => Promise.all(paths.map(async (path) => (await guest.ask(path)).status))
    guest.put(anInstance(before), Buffer.from('x'))
    expect(await statuses()).not.toContain(status)
    guest.put(anInstance({ ...after, revision: 2 }), Buffer.from('x'))
    expect(new Set(await statuses())).toEqual(new Set([status]))
  },
)

test('E3: each option has a row, except those that take no path away', () => {
  const { options } = aGuestServer().put(anInstance())
  expect(Object.keys(options).filter((name) => !(name in TAKEN))).toEqual(PATHLESS)
})

test('E3: a tag that a change removed ends when the option is switched off, and does not come back', async () => {
  const guest = aGuestServer()
  const put = (revision: number, tags: Record<string, string>, instanceMetadataTags: 'enabled' | 'disabled') =>
    guest.put(anInstance({ revision, tags, options: { instanceMetadataTags } }))
  const status = async () => (await guest.ask('/latest/meta-data/tags/instance/a')).status
  put(1, { a: 'x', b: 'y' }, 'enabled')
  await status()
  put(2, { b: 'y' }, 'enabled')
  expect(await status()).toBe(200)
  put(3, { b: 'y' }, 'disabled')
  expect(await status()).toBe(404)
  put(4, { b: 'y' }, 'enabled')
  expect(await status()).toBe(404)
})

test("E3: an address that moves to another instance never returns the former one's data", async () => {
  const guest = aGuestServer()
  guest.put(at('10.0.0.2/30', { id: 'srv-first' }))
  expect((await guest.ask('/latest/meta-data/instance-id')).text).toBe('srv-first')
  guest.put(at('10.0.0.6/30', { id: 'srv-first', revision: 2 }))
  expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(503)
  guest.put(at('10.0.0.2/30', { id: 'srv-second' }))
  expect((await guest.ask('/latest/meta-data/instance-id')).text).toBe('srv-second')
  expect((await guest.ask({ url: '/latest/meta-data/instance-id', from: '10.0.0.6' })).text).toBe('srv-first')
})

test('E4: two tenants use one address on different networks, and each gets its own data', async () => {
  const [red, blue] = [aGuestServer({ network: 'red' }), aGuestServer({ network: 'blue' })]
  const on = (network: string) =>
    anInstance({
      id: `srv-${network}`,
      interfaces: [{ id: 'int-x', macAddress: MAC, network, ipv4Addresses: ['10.0.0.2/30'] }],
    })
  for (const guest of [red, blue]) {
    guest.put(on('red'))
    guest.put(on('blue'))
  }
  expect((await red.ask('/latest/meta-data/instance-id')).text).toBe('srv-red')
  expect((await blue.ask('/latest/meta-data/instance-id')).text).toBe('srv-blue')
})

test('invariant 7: a contested address is served to neither instance, their other addresses are', async () => {
  const guest = aGuestServer()
  const both = { id: 'int-x', macAddress: MAC, ipv4Addresses: ['10.0.0.2/30', '10.9.0.2/30'] }
  guest.put(anInstance({ id: 'srv-first', interfaces: [both] }))
  guest.put(at('10.0.0.2/30', { id: 'srv-second' }))
  expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(503)
  expect((await guest.ask({ url: '/latest/meta-data/instance-id', from: '10.9.0.2' })).text).toBe('srv-first')
  expect([...guest.view.contested()]).toEqual([['default 10.0.0.2', ['srv-first', 'srv-second']]])
  guest.view.remove('srv-first', 1)
  expect((await guest.ask('/latest/meta-data/instance-id')).text).toBe('srv-second')
  expect(guest.view.contested().size).toBe(0)
})

test('a change is reported for its instance, and for those whose addresses it claims or frees', () => {
  const guest = aGuestServer()
  const { view } = guest
  let changed: string[] = []
  view.onChange((id) => changed.push(id))
  const reported = (change: () => unknown) => {
    changed = []
    change()
    return changed.sort()
  }
  const put = (id: string, address: string) => () => guest.put(at(address, { id }))
  expect(reported(put('srv-a', '10.0.0.2/30'))).toEqual(['srv-a'])
  expect(reported(put('srv-b', '10.0.0.2/30'))).toEqual(['srv-a', 'srv-b'])
  expect(reported(put('srv-c', '10.0.0.3/30'))).toEqual(['srv-c'])
  expect(reported(put('srv-a', '10.0.0.4/30'))).toEqual(['srv-a', 'srv-b'])
  expect(reported(put('srv-a', '10.0.0.2/30'))).toEqual(['srv-a', 'srv-b'])
  expect(reported(() => view.remove('srv-b', 1))).toEqual(['srv-a', 'srv-b'])
})

const owning = (id: string, ranges: Record<string, string[]>, change: Record<string, unknown> = {}) =>
  anInstance({
    id,
    interfaces: [{ id: 'int-x', macAddress: MAC, ...ranges }],
    options: { httpProtocolIpv6: 'enabled' },
    ...change,
  })

test('E1: a guest is identified by any address inside a prefix of its interface, on that network only', async () => {
  const [guest, other] = [aGuestServer(), aGuestServer({ network: 'red' })]
  for (const each of [guest, other]) each.put(owning('srv-first', { ipv6Prefixes: ['2a02:1348:178:1::/64'] }))
  for (const from of [
    '2a02:1348:178:1::',
    '2a02:1348:178:1::1',
    '2a02:1348:178:1:5054:ff:fe12:3456',
    '2a02:1348:178:1:ffff:ffff:ffff:ffff',
  ]) {
    expect((await guest.ask({ url: '/latest/meta-data/instance-id', from })).text).toBe('srv-first')
    expect((await other.ask({ url: '/latest/meta-data/instance-id', from })).status).toBe(503)
  }
  for (const from of ['2a02:1348:178:2::1', '2a02:1348:178::1', '2a02:1348:177:1::1'])
    expect((await guest.ask({ url: '/latest/meta-data/instance-id', from })).status).toBe(503)
})

test('invariant 7: a range that its last owner has left is not given to a record of before its claim', () => {
  const view = new View({}, () => 0, false)
  const put = (id: string, order: number) => {
    const instance = parsed(at('10.0.0.2/30', { id }))
    view.replace({ instance, userData: undefined, digest: undefined, order, lost: [] })
    return view.find('default', '10.0.0.2').kind
  }
  put('srv-b', 5)
  view.remove('srv-b', 6)
  expect([3, 4, 7].map((order) => put('srv-a', order))).toEqual(['unknown', 'unknown', 'owned'])
  const elsewhere = parsed(at('10.0.0.3/30', { id: 'srv-a' }))
  view.replace({ instance: elsewhere, userData: undefined, digest: undefined, order: 9, lost: [] })
  expect([6, 8].map((order) => put('srv-c', order))).toEqual(['unknown', 'owned'])
})

test("E3: a prefix that moves to another instance never returns the former one's data", async () => {
  const guest = aGuestServer()
  const id = async () => await guest.ask({ url: '/latest/meta-data/instance-id', from: '2a02:1348:178:1::abcd' })
  guest.put(owning('srv-first', { ipv6Prefixes: ['2a02:1348:178:1::/64'] }))
  expect((await id()).text).toBe('srv-first')
  guest.put(owning('srv-second', { ipv6Prefixes: ['2a02:1348:178:1::/64'] }))
  expect((await id()).status).toBe(503)
  guest.put(owning('srv-first', { ipv6Prefixes: ['2a02:1348:178:2::/64'] }, { revision: 2 }))
  expect((await id()).text).toBe('srv-second')
})

test('E1, invariant 7: where prefixes of two records overlap neither is served; elsewhere both are', async () => {
  const guest = aGuestServer()
  const ownerAt = async (from: string) => {
    const { status, text } = await guest.ask({ url: '/latest/meta-data/instance-id', from })
    return status === 200 ? text : String(status)
  }
  guest.put(owning('srv-first', { ipv6Prefixes: ['2a02:1348:178::/56'], ipv6Addresses: ['2a02:1348:178:1::7'] }))
  guest.put(owning('srv-second', { ipv6Prefixes: ['2a02:1348:178:1::/64', '2a02:1348:179::/64'] }))
  guest.put(owning('srv-third', { ipv6Addresses: ['2a02:1348:178:2::7', '2a02:1348:17a::7'] }))
  expect(await Promise.all(['2a02:1348:178:1::1', '2a02:1348:178:1::7', '2a02:1348:178:2::7'].map(ownerAt))).toEqual([
    '503',
    '503',
    '503',
  ])
  expect(await Promise.all(['2a02:1348:178:2::8', '2a02:1348:179::1', '2a02:1348:17a::7'].map(ownerAt))).toEqual([
    'srv-first',
    'srv-second',
    'srv-third',
  ])
  expect(Object.fromEntries(guest.view.contested())).toEqual({
    'default 2a02:1348:178:1::7': ['srv-first', 'srv-second'],
    'default 2a02:1348:178:1::/64': ['srv-second', 'srv-first'],
    'default 2a02:1348:178:2::7': ['srv-third', 'srv-first'],
  })
  guest.view.remove('srv-first', 1)
  expect(
    await Promise.all(
      ['2a02:1348:178:1::1', '2a02:1348:178:1::7', '2a02:1348:178:2::7', '2a02:1348:178:2::8'].map(ownerAt),
    ),
  ).toEqual(['srv-second', 'srv-second', 'srv-third', '503'])
  expect(guest.view.contested().size).toBe(0)
})

test('a removed instance is unknown at all of its addresses', async () => {
  const guest = aGuestServer()
  guest.put(anInstance())
  guest.view.remove('srv-abcde', 1)
  guest.view.remove('srv-abcde', 1)
  expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(503)
  expect(guest.view.size).toBe(0)
})

test('E1: IPv6 peers are identified in canonical form', async () => {
  const guest = aGuestServer()
  guest.put(
    anInstance({
      interfaces: [{ id: 'int-x', macAddress: MAC, ipv6Addresses: ['fd00::2/64'] }],
      options: { httpProtocolIpv6: 'enabled' },
    }),
  )
  for (const from of ['fd00::2', 'fd00:0:0:0:0:0:0:2', 'FD00::2'])
    expect((await guest.ask({ url: '/latest/meta-data/ipv6', from })).text).toBe('fd00::2')
  expect((await guest.ask({ url: '/latest/meta-data/ipv6', from: 'fd00::3' })).status).toBe(503)
})

test('B5: of an instance that keeps changing, only the last 64 former states still answer', async () => {
  const guest = aGuestServer()
  const tagged = (n: number) =>
    anInstance({ revision: n + 1, tags: { [`t${n}`]: 'x' }, options: { instanceMetadataTags: 'enabled' } })
  const status = async (n: number) => (await guest.ask(`/latest/meta-data/tags/instance/t${n}`)).status
  for (let n = 0; n <= 100; n++) {
    guest.put(tagged(n))
    expect(await status(n)).toBe(200)
  }
  expect([await status(99), await status(36), await status(35), await status(0)]).toEqual([200, 200, 404, 404])
})

test('what was made for a guest is kept while it asks, and made again after it was forgotten', async () => {
  const guest = aGuestServer()
  guest.put(anInstance())
  const served = guest.view.get('srv-abcde')!
  const made = () => served.resolve(LATEST, 'meta-data/instance-id')
  const first = made()
  guest.view.forgetIdle()
  expect(made()).toBe(first)
  guest.view.forgetIdle()
  guest.view.forgetIdle()
  expect(made()).not.toBe(first)
  expect((await guest.ask('/latest/meta-data/instance-id')).text).toBe('srv-abcde')
})

test('what was made for a guest that asks no more is forgotten, also if its record keeps changing', async () => {
  const guest = aGuestServer()
  guest.put(anInstance())
  await guest.ask('/latest/meta-data/')
  guest.put(anInstance({ revision: 2, tags: { a: 'x' } }))
  guest.view.forgetIdle()
  guest.put(anInstance({ revision: 3, interfaces: [mapped] }))
  guest.view.forgetIdle()
  guest.put(anInstance({ revision: 4, interfaces: [unmapped] }))
  expect((await guest.ask('/latest/meta-data/public-ipv4')).status).toBe(404) // nothing was compared
})

test('E5: an unconfirmed prefix is gained again when another instance leaves a part of it', () => {
  const view = new View({}, () => 0, true)
  const put = (id: string, ranges: Record<string, readonly string[]>) => {
    const instance = parsed(anInstance({ id, interfaces: [{ id: `int-${id}`, macAddress: MAC, ...ranges }] }))
    view.replace({ instance, userData: undefined, digest: undefined, order: 0, lost: [] })
    return view.changes
  }
  put('srv-b', { ipv6Addresses: ['fd00::1'] })
  const contested = put('srv-a', { ipv6Prefixes: ['fd00::/64'] })
  view.remove('srv-b', 0)
  view.noteRules(contested) // by these, srv-b can still send from fd00::1
  expect(view.find('default', 'fd00::1').kind).toBe('unconfirmed')
  view.noteRules(view.changes)
  expect(view.find('default', 'fd00::1').kind).toBe('owned')
})
