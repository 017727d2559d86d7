/** H5, H6 and H7 of the contract: the trees of NoCloud and OpenStack, with vendor data. */
import { beforeEach, describe, expect, test } from 'vitest'
import { aGuestServer, type TestGuest } from '../support/fixtures/guest-server.ts'
import { aFullInstance, anInstance } from '../support/fixtures/instance.ts'

const VENDOR = '#cloud-config\nruncmd: [[touch, /vendor]]\n'
const SCRIPT = Buffer.from('#!/bin/sh\n')
const WITH_OPENSTACK = { options: { openstack: 'enabled' } }
const OPENSTACK_VERSIONS =
  '2012-08-10\n2013-10-17\n2015-10-15\n2016-06-30\n2016-10-06\n2017-02-22\n2018-08-27\n2020-10-14\nlatest'

const aNic = (address: string) => ({ id: 'int-x', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${address}/24`] })

let guest: TestGuest
beforeEach(() => {
  guest = aGuestServer()
})
const get = async (url: string) => {
  const { status, headers, text } = await guest.ask(url)
  return { status, type: headers['content-type'], text }
}
const json = async (url: string) => JSON.parse((await guest.ask(url)).body.toString()) as Record<string, unknown>

const KEYS_OF_TWO = [
  { user: 'usr-a', key: 'ssh-rsa AAAA', moreKeys: ['ssh-rsa BBBB b'] },
  { user: 'usr-b', key: 'ssh-rsa CCCC' },
]

describe('H5: NoCloud', () => {
  test('has the id, the host name and the keys of the instance', async () => {
    guest.put(aFullInstance())
    expect(await json('/nocloud/meta-data')).toEqual({
      'instance-id': 'srv-abcde',
      'local-hostname': 'srv-abcde.gb1.example.com',
      hostname: 'srv-abcde.gb1.example.com',
      'instance-type': '2gb.ssd',
      'availability-zone': 'gb1-a',
      zone: 'gb1-a',
      region: 'gb1',
      'public-keys': [
        'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example',
        'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob',
      ],
    })
  })

  test('has all keys of a user', async () => {
    guest.put(anInstance({ publicKeys: KEYS_OF_TWO }))
    expect(await json('/nocloud/meta-data')).toMatchObject({
      'public-keys': ['ssh-rsa AAAA', 'ssh-rsa BBBB b', 'ssh-rsa CCCC'],
    })
  })

  test('H7: has user-data and vendor data as published', async () => {
    guest.put(anInstance({ vendorData: VENDOR }), SCRIPT)
    expect(await get('/nocloud/user-data')).toEqual({
      status: 200,
      type: 'application/octet-stream',
      text: SCRIPT.toString(),
    })
    expect(await get('/nocloud/vendor-data')).toEqual({ status: 200, type: 'text/plain', text: VENDOR })
  })

  test('user-data and vendor data are an empty 200 where there are none', async () => {
    guest.put(anInstance())
    for (const name of ['user-data', 'vendor-data'])
      expect(await get(`/nocloud/${name}`)).toMatchObject({ status: 200, text: '' })
  })

  test('sealed user-data is an empty 200, and the vendor data is still there', async () => {
    guest.put(anInstance({ vendorData: VENDOR, sealedAt: '2026-11-20T15:04:05Z' }), SCRIPT)
    expect(await get('/nocloud/user-data')).toMatchObject({ status: 200, text: '' })
    expect(await get('/nocloud/vendor-data')).toMatchObject({ status: 200, text: VENDOR })
  })

  test.each([
    ['with addresses', aFullInstance()],
    ['where DHCP is enough', anInstance()],
  ])('has a network-config %s, by MAC address and without names', async (_, instance) => {
    guest.put(instance)
    const config = await json('/nocloud/network-config')
    expect(config).toMatchObject({ version: 2 })
    for (const ethernet of Object.values(config['ethernets'] as Record<string, object>)) {
      expect(ethernet).toMatchObject({ match: { macaddress: expect.any(String) as string } })
      expect(ethernet).not.toHaveProperty('set-name')
    }
  })

  test('lists its files, also without the last slash, and has no other', async () => {
    guest.put(anInstance())
    for (const url of ['/nocloud/', '/nocloud', '//nocloud//'])
      expect((await get(url)).text).toBe('meta-data\nnetwork-config\nuser-data\nvendor-data')
    for (const url of ['/nocloud/other', '/nocloud/meta-data/x', '/latest/nocloud/meta-data', '/nocloudx/meta-data'])
      expect((await get(url)).status).toBe(404)
  })

  test('needs a session token where the instance requires one', async () => {
    guest.put(anInstance({ options: { httpTokens: 'required' } }))
    expect((await get('/nocloud/meta-data')).status).toBe(401)
  })
})

describe('H6: OpenStack', () => {
  test('is 404 unless the record enables it, but for the user-data that Ignition asks for', async () => {
    guest.put(anInstance(), SCRIPT)
    for (const url of [
      '/openstack/',
      '/openstack/latest/',
      '/openstack/latest/meta_data.json',
      '/openstack/2018-08-27/user_data',
    ])
      expect((await get(url)).status).toBe(404)
    expect((await get('/openstack/latest/user_data')).text).toBe(SCRIPT.toString())
  })

  test('what it lists answers, in each version', async () => {
    guest.put(aFullInstance({ ...WITH_OPENSTACK, vendorData: VENDOR }), SCRIPT)
    expect((await get('/openstack')).text).toBe(OPENSTACK_VERSIONS)
    const listed: Record<string, string[]> = {}
    for (const version of OPENSTACK_VERSIONS.split('\n')) {
      listed[version] = (await get(`/openstack/${version}/`)).text.split('\n').sort()
      for (const name of listed[version]) expect((await get(`/openstack/${version}/${name}`)).status).toBe(200)
    }
    expect(listed['2012-08-10']).toEqual(['meta_data.json', 'user_data'])
    expect(listed['2013-10-17']).toEqual(['meta_data.json', 'user_data', 'vendor_data.json'])
    expect(listed['2015-10-15']).toEqual(['meta_data.json', 'network_data.json', 'user_data', 'vendor_data.json'])
    expect(listed['latest']).toEqual([
      'meta_data.json',
      'network_data.json',
      'user_data',
      'vendor_data.json',
      'vendor_data2.json',
    ])
    expect((await get('/openstack/2012-08-10/vendor_data.json')).status).toBe(404)
    expect((await get('/openstack/2019-01-01/meta_data.json')).status).toBe(404)
  })

  test('each key of a user has a name of its own, since clients take one key of each name', async () => {
    guest.put(anInstance({ publicKeys: KEYS_OF_TWO, options: { openstack: 'enabled' } }))
    const named = [
      ['usr-a', 'ssh-rsa AAAA'],
      ['usr-a:2', 'ssh-rsa BBBB b'],
      ['usr-b', 'ssh-rsa CCCC'],
    ] as const
    expect(await json('/openstack/latest/meta_data.json')).toMatchObject({
      public_keys: Object.fromEntries(named),
      keys: named.map(([name, data]) => ({ name, type: 'ssh', data })),
    })
  })

  test('the uuid is the instance id, so that a guest that changes its data source runs nothing again', async () => {
    guest.put(aFullInstance({ options: { openstack: 'enabled', instanceMetadataTags: 'enabled' } }))
    expect(await json('/openstack/latest/meta_data.json')).toEqual({
      uuid: 'srv-abcde',
      name: 'srv-abcde',
      hostname: 'srv-abcde.gb1.example.com',
      launch_index: 0,
      availability_zone: 'gb1-a',
      project_id: 'acc-xyz12',
      public_keys: {
        'usr-xl7gd': 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example',
        'usr-bob00': 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob',
      },
      keys: [
        {
          name: 'usr-xl7gd',
          type: 'ssh',
          data: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example',
        },
        { name: 'usr-bob00', type: 'ssh', data: 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob' },
      ],
      meta: (aFullInstance() as { tags: object }).tags,
      random_seed: expect.any(String) as string,
    })
  })

  test('random_seed has 512 bytes, other ones for each instance and each daemon', async () => {
    const seeds: unknown[] = []
    for (const daemon of [aGuestServer(), aGuestServer()])
      for (const [id, address] of [
        ['srv-aaaaa', '10.0.0.2'],
        ['srv-bbbbb', '10.0.0.3'],
      ] as const) {
        daemon.put(anInstance({ ...WITH_OPENSTACK, id, interfaces: [aNic(address)] }))
        const { body } = await daemon.ask({ url: '/openstack/latest/meta_data.json', from: address })
        const { random_seed: seed } = JSON.parse(body.toString()) as { random_seed: string }
        expect(Buffer.from(seed, 'base64')).toHaveLength(512)
        seeds.push(seed)
      }
    expect(new Set(seeds).size).toBe(4)
  })

  test('H1: random_seed stays the same for the life of the daemon, so it wakes no request that waits', async () => {
    guest.put(anInstance(WITH_OPENSTACK))
    const before = await guest.ask('/openstack/latest/meta_data.json')
    guest.view.forgetIdle()
    guest.view.forgetIdle()
    guest.put(anInstance({ ...WITH_OPENSTACK, revision: 2 }))
    const after = await guest.ask('/openstack/latest/meta_data.json')
    expect([after.headers['etag'], after.text]).toEqual([before.headers['etag'], before.text])
  })

  test('random_seed is nowhere else: not in the other trees, and in no line of the log', async () => {
    guest = aGuestServer({ level: 'trace' })
    guest.put(aFullInstance(WITH_OPENSTACK), SCRIPT)
    const { random_seed: seed } = (await json('/openstack/2018-08-27/meta_data.json')) as { random_seed: string }
    expect((await guest.ask('/latest/?recursive=true')).text).not.toContain(seed)
    expect((await guest.ask('/nocloud/meta-data')).text).not.toContain(seed)
    expect(guest.log.length).toBeGreaterThan(0)
    expect(JSON.stringify(guest.log)).not.toContain(seed)
  })

  test('has no tags unless the instance shows its tags', async () => {
    guest.put(aFullInstance(WITH_OPENSTACK))
    expect(await json('/openstack/latest/meta_data.json')).not.toHaveProperty('meta')
  })

  test('H7: vendor data is in vendor_data.json and not again in vendor_data2.json', async () => {
    guest.put(anInstance({ ...WITH_OPENSTACK, vendorData: VENDOR }))
    expect(await json('/openstack/latest/vendor_data.json')).toEqual({ 'cloud-init': VENDOR })
    expect(await json('/openstack/latest/vendor_data2.json')).toEqual({})
    guest.put(anInstance({ ...WITH_OPENSTACK, revision: 2 }))
    expect(await json('/openstack/latest/vendor_data.json')).toEqual({})
  })

  test.each([
    ['there is none', {}, undefined],
    ['it is sealed', { sealedAt: '2026-11-20T15:04:05Z' }, SCRIPT],
  ])('user-data is 404 and not listed if %s', async (_why, change, userData) => {
    guest.put(anInstance({ ...WITH_OPENSTACK, ...change }), userData)
    expect((await get('/openstack/latest/')).text).not.toContain('user_data')
    for (const version of ['latest', '2018-08-27'])
      expect((await get(`/openstack/${version}/user_data`)).status).toBe(404)
  })

  test('cloudbase-init finds no place to post a password, so its plugin that sets one is done', async () => {
    guest.put(aFullInstance(WITH_OPENSTACK), SCRIPT)
    // httpservice.py, in the order of its requests: meta_data.json of 2013-04-04 means that it may post a password. Then
    // it has set a random one, asks whether an older one is posted, and fails at the 404, at each boot.
    const asked: [string, number][] = []
    const load = async (path: string) => {
      const { status } = await guest.ask({ url: `/openstack/${path}`, headers: { 'accept-encoding': 'identity' } })
      asked.push([path, status])
      return status === 200
    }
    await load('latest/meta_data.json')
    await load('latest/network_data.json')
    if (await load('2013-04-04/meta_data.json')) await load('2013-04-04/password')
    await load('latest/user_data')
    expect(asked).toEqual([
      ['latest/meta_data.json', 200],
      ['latest/network_data.json', 200],
      ['2013-04-04/meta_data.json', 404],
      ['latest/user_data', 200],
    ])
  })

  test("cloudbase-init's POST of a password is 405", async () => {
    guest.put(anInstance(WITH_OPENSTACK))
    const { status, headers } = await guest.ask({ method: 'POST', url: '/openstack/latest/password', payload: 'x' })
    expect([status, headers['allow']]).toEqual([405, 'GET, HEAD'])
    expect((await get('/openstack/latest/password')).status).toBe(404)
  })
})

test('H7: vendor data is not in the tree of EC2', async () => {
  guest.put(aFullInstance({ vendorData: VENDOR }), SCRIPT)
  expect((await get('/latest/')).text).toBe('dynamic\nmeta-data\nuser-data')
  expect((await get('/latest/?recursive=true')).text).not.toContain('vendor')
  expect((await get('/latest/vendor-data')).status).toBe(404)
})

test('H1: a request waits for a change of a seed', async () => {
  guest.put(anInstance())
  const waiting = guest.ask('/nocloud/vendor-data?wait_for_change=true')
  await new Promise(setImmediate)
  guest.put(anInstance({ revision: 2, vendorData: VENDOR }))
  expect((await waiting).text).toBe(VENDOR)
})
