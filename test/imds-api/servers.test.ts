/** Servers: their forms, what creates and changes them, and what is refused. */
import { sql } from 'kysely'
import t from 'tap'
import { placeOf } from '../../src/imds-api/changes/allocate.ts'
import { createServer } from '../../src/imds-api/changes/create-server.ts'
import { placeServer } from '../../src/imds-api/changes/hypervisors.ts'
import { deleteImage } from '../../src/imds-api/changes/images.ts'
import { finishPublish } from '../../src/imds-api/changes/handshake.ts'
import type { Tx } from '../../src/imds-api/database/transaction.ts'
import { POOL_KINDS, type PoolKind } from '../../src/imds-api/model/pools.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import {
  nestedAccount,
  nestedCloudIp,
  nestedImage,
  nestedInterface,
  nestedServer,
  nestedServerGroup,
  serverType,
  TIME,
  zone,
} from '../support/fixtures/representations.ts'
import { aClient, conflict, invalid, refused } from '../support/programs/api-client.ts'
import { anApi, openTransaction, rowOf, setRow } from '../support/programs/api.ts'

interface Server extends Record<string, unknown> {
  id: string
  status: string
  created_at: string
  image: { created_at: string }
  interfaces: { id: string; ipv4_address: string; mac_address: string }[]
  cloud_ips: { id: string; status: string; public_ipv4: string }[]
  server_groups: { id: string; created_at: string }[]
}

const api = await anApi(t)
const { db } = api.database
const { call, list, create: make } = aClient<Server>(api)
const create = (body: object = {}) => make('servers', { image: 'img-deb12', ...body })
const revisionOf = async (id: string) => (await rowOf(db, 'servers', id)).revision

/** The metadata options of a server that names none. */
const OPTIONS = {
  http_endpoint: 'enabled',
  http_tokens: 'optional',
  http_put_response_hop_limit: 1,
  http_protocol_ipv6: 'disabled',
  instance_metadata_tags: 'disabled',
  openstack: 'disabled',
  reports: 'disabled',
}

/** A type that is smaller than those of the region. */
const TINY = {
  ...{ id: 'typ-gone', handle: 'tiny', name: 'Tiny', status: 'available' as const },
  ...{ cores: 1, ram: 512, disk_size: 1024, storage_type: 'local' as const },
}

t.test('a new server in its full, collected and nested form', async (t) => {
  const data = 'IyEvYmluL3No\nCg==\n' // with line breaks, as the CLI writes it
  const given = {
    image: 'debian-12',
    name: 'web 1',
    server_type: '4gb.ssd',
    zone: 'gb1-b',
    user_data: data,
    cloud_ip: true,
    disk_encrypted: true,
    compatibility_mode: true,
  }
  const { status, body } = await call('POST', 'servers', given)
  t.equal(status, 202)
  t.match(body, {
    id: /^srv-[0-9a-z]{5}$/,
    created_at: TIME,
    interfaces: [{ id: /^int-[0-9a-z]{5}$/ }],
    cloud_ips: [{ id: /^cip-[0-9a-z]{5}$/ }],
  })
  const {
    id,
    created_at,
    image: { created_at: imageCreated },
    interfaces: [one],
    cloud_ips: [ip],
    server_groups: [group],
  } = body
  const cloudIp = nestedCloudIp(ip!.id, {
    name: '',
    public_ipv4: '203.0.113.1',
    public_ipv6: '2001:db8:1::1',
    status: 'reserved',
    reverse_dns: '',
  })
  const nested = nestedServer(id, { name: 'web 1', status: 'creating', created_at, started_at: null, deleted_at: null })
  const collected = {
    ...nested,
    account: nestedAccount(ONE),
    image: nestedImage('img-deb12', imageCreated),
    server_type: serverType('typ-large'),
    zone: zone('zon-bbbb2'),
    cloud_ips: [cloudIp],
    interfaces: [nestedInterface(one!.id, '02:24:19:00:00:00', '10.240.0.1')],
    server_groups: [
      nestedServerGroup(group!.id, {
        name: 'default',
        description: 'All servers that name no group',
        created_at: group!.created_at,
        default: true,
      }),
    ],
    snapshots: [],
    volumes: [],
    compatibility_mode: true,
  }
  const full = {
    ...collected,
    user_data: 'IyEvYmluL3NoCg==',
    disk_encrypted: true,
    console_url: null,
    console_token: null,
    console_token_expires: null,
    snapshots_schedule: null,
    snapshots_schedule_next_at: null,
    snapshots_retention: null,
  }
  t.strictSame(body, full)
  t.strictSame(await call('GET', `servers/${id}`), { status: 200, body: full })
  t.strictSame(await call('GET', 'servers'), { status: 200, body: [collected] })
  t.strictSame(await call('GET', `interfaces/${one!.id}`), {
    status: 200,
    body: { ...nestedInterface(one!.id, '02:24:19:00:00:00', '10.240.0.1'), server: nested },
  })
  const uses = { servers_used: 1, ram_used: 4096, cloud_ips_used: 1 }
  for (const account of [(await call('GET', 'account')).body, (await list('accounts'))[0]!]) {
    t.match(account, uses)
    t.strictSame([account['servers'], account.cloud_ips], [[nested], [cloudIp]])
  }
  t.strictSame((await call('GET', `cloud_ips/${ip!.id}`)).body['server'], nested)
  await remove(id)
})

t.test('a create needs only an image: smallest type, freest zone, default group, no user_data', async (t) => {
  const server = await create()
  t.match(server, {
    name: '',
    server_type: { id: 'typ-small' },
    zone: { id: 'zon-aaaa1' },
    user_data: null,
    cloud_ips: [],
    disk_encrypted: false,
    compatibility_mode: false,
    server_groups: [{ default: true }],
  })
  t.equal(server.cloud_ips.length, 0)
  const { hypervisor } = await rowOf(db, 'servers', server.id)
  t.equal(hypervisor, 'hv-1', 'the one with the most free RAM')
  await remove(server.id)
})

t.test('placement takes the hypervisor of the zone with the most free RAM, and refuses if none has room', async (t) => {
  const placed = async (zoneName: string) => {
    const { id } = await create({ zone: zoneName })
    const { hypervisor } = await rowOf(db, 'servers', id)
    return [id, hypervisor] as const
  }
  await db.updateTable('hypervisors').set({ ram: 2048 }).where('zone_id', '=', 'zon-aaaa1').execute()
  const places = [await placed('gb1-a'), await placed('gb1-a'), await placed('gb1-a'), await placed('zon-aaaa1')]
  t.strictSame(
    places.map(([, hypervisor]) => hypervisor),
    ['hv-1', 'hv-2', 'hv-1', 'hv-2'],
  )
  t.strictSame(
    await call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-a' }),
    refused(503, 'insufficient_capacity', 'no hypervisor of the zone has 1024 MB of RAM free'),
  )
  t.equal((await placed('gb1-b'))[1], 'hv-3')
  for (const { id } of await list('servers')) await remove(id)
  await db.updateTable('hypervisors').set({ ram: 65_536 }).where('name', '=', 'hv-1').execute()
})

t.test('a change that places a server on a hypervisor has its RAM, and others go elsewhere meanwhile', async (t) => {
  const { id: other } = await create({ zone: 'gb1-b' })
  const placeOf = async (id: string) => (await rowOf(db, 'servers', id)).hypervisor
  const elsewhere = await db.transaction().execute(async (tx) => {
    const taken = (await placeServer(tx, { zoneId: 'zon-aaaa1', ram: 1024 }))!.name
    const { id } = await create({ zone: 'gb1-a' })
    t.not(await placeOf(id), taken, 'it did not wait')
    return id
  })
  await db.updateTable('hypervisors').set({ ram: 1024 }).where('name', '=', 'hv-3').execute()
  await setRow(db, 'servers', other, { hypervisor: 'hv-1' })
  const take = async (tx: Tx) => {
    const { name } = (await placeServer(tx, { zoneId: 'zon-bbbb2', ram: 1024 }))!
    await setRow(tx, 'servers', other, { hypervisor: name })
  }
  t.strictSame(
    await api.during(take, () => call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-b' })),
    refused(503, 'insufficient_capacity', 'no hypervisor of the zone has 1024 MB of RAM free'),
  )
  t.equal(await placeOf(other), 'hv-3')
  await db.updateTable('hypervisors').set({ ram: 49_152 }).where('name', '=', 'hv-3').execute()
  for (const id of [other, elsewhere]) await remove(id)
})

t.test('a refused create names all of its faults at once', async (t) => {
  t.strictSame(
    await call('POST', 'servers', {
      name: 1,
      user_data: 2,
      server_type: [],
      zone: {},
      server_groups: 'grp',
      cloud_ip: 3,
      disk_encrypted: 'yes',
      compatibility_mode: 0,
    }),
    invalid(
      'image is missing',
      'name must be a string or null',
      'server_type must be a string',
      'zone must be a string',
      'user_data must be a string or null',
      'server_groups must be an array',
      'cloud_ip must be a boolean or a string',
      'disk_encrypted must be a boolean',
      'compatibility_mode must be a boolean',
    ),
  )
  const {
    body: { id: theirs },
  } = await call('POST', 'server_groups', {}, TWO)
  const {
    body: { id: theirIp },
  } = await call('POST', 'cloud_ips', {}, TWO)
  t.strictSame(
    await call('POST', 'servers', {
      image: 'img-two02',
      server_type: '8gb',
      zone: 'gb1-z',
      server_groups: [theirs, 'grp-zzzzz'],
      user_data: '?',
      cloud_ip: theirIp,
    }),
    invalid(
      'user_data must be base64',
      'image: img-two02 does not exist: GET /1.0/images lists them',
      'server_type: 8gb does not exist, or is deprecated: GET /1.0/server_types lists them',
      'zone: gb1-z does not exist: GET /1.0/zones lists them',
      `server_groups: ${theirs} does not exist: GET /1.0/server_groups lists them`,
      'server_groups: grp-zzzzz does not exist: GET /1.0/server_groups lists them',
      `cloud_ip: ${theirIp} does not exist: GET /1.0/cloud_ips lists them`,
    ),
  )
  t.match(await call('POST', 'servers', { image: 'img-old03' }), {
    status: 422,
    body: { errors: ['image: img-old03 is deprecated: name one that is available'] },
  })
  for (const [status, fault] of [
    ['deprecated', 'is deprecated: name one that is available'],
    ['failed', 'is failed: name one that is available'],
    ['deleted', 'does not exist'],
  ] as const) {
    await setRow(db, 'images', 'img-two02', { status })
    t.match(
      await call('POST', 'servers', { image: 'img-two02' }, TWO),
      { status: 422, body: { errors: [`image: img-two02 ${fault}`] } },
      'its own image',
    )
    t.match(
      await call('POST', 'servers', { image: 'img-two02' }),
      { status: 422, body: { errors: ['image: img-two02 does not exist: GET /1.0/images lists them'] } },
      'the image of another account',
    )
  }
  await setRow(db, 'images', 'img-two02', { status: 'available' })
  t.strictSame((await call('GET', 'servers')).body, [], 'nothing was created')
  t.strictSame(
    await db
      .selectFrom('allocations')
      .innerJoin('address_pools', 'address_pools.id', 'pool_id')
      .select('number')
      .where('kind', '=', 'mac')
      .execute(),
    [],
  )
})

t.test('parameters that are null or an empty text are not given', async (t) => {
  for (const empty of [null, '']) {
    const none = { server_type: empty, zone: empty, server_groups: empty, cloud_ip: empty, compatibility_mode: empty }
    const { status, body } = await call('POST', 'servers', { image: 'img-deb12', ...none })
    t.match({ status, body }, { status: 202, body: { cloud_ips: [], compatibility_mode: false } })
    t.equal((body.server_groups as readonly object[]).length, 1, 'the default group')
    const { image: _, ...kept } = (await call('PUT', `servers/${body.id}`, { ...none, name: 'web' })).body
    t.match(kept, { name: 'web', server_groups: body.server_groups })
  }
})

t.test('user_data: base64 of at most 16,384 bytes, kept without white space', async (t) => {
  const largest = Buffer.alloc(16_384, 1).toString('base64').replaceAll(/./g, '$&\r\n')
  const { id, user_data: kept } = await create({ user_data: largest })
  t.equal(kept, largest.replaceAll('\r\n', ''), 'the limit is of the bytes, not of the text')
  const update = (user_data: string | null) => call('PUT', `servers/${id}`, { user_data })
  for (const [text, expected] of [
    ['YQ==\r\n', 'YQ=='],
    ['', ''],
    ['a-_b', 'a+/b'], // in the usual alphabet
    [null, null],
  ] as const)
    t.match(await update(text), { status: 200, body: { user_data: expected } }, JSON.stringify(text))
  t.strictSame(await update('YQ='), invalid('user_data must be base64'))
  const long = Buffer.alloc(16_385).toString('base64')
  const tooLong = invalid('user_data must be at most 16384 bytes; it is 16385')
  t.strictSame(await update(long), tooLong)
  t.strictSame(await call('POST', 'servers', { image: 'img-deb12', user_data: long }), tooLong)
  await remove(id)
})

t.test('an update changes only the fields that it has; only what guests see makes a new revision', async (t) => {
  const {
    id,
    server_groups: [first],
  } = await create({ name: 'a', user_data: 'YQ==' })
  const {
    body: { id: group },
  } = await call('POST', 'server_groups', { name: 'web' })
  const before = await revisionOf(id)
  t.match(await call('PUT', `servers/${id}`, { name: 'b', compatibility_mode: true }), {
    status: 200,
    body: { name: 'b', compatibility_mode: true, user_data: 'YQ==', server_groups: [{ id: first!.id }] },
  })
  t.match(await call('PUT', `servers/${id}`, {}), {
    status: 200,
    body: { name: 'b', compatibility_mode: true, user_data: 'YQ==' },
  })
  t.equal(await revisionOf(id), before)
  t.match(await call('PUT', `servers/${id}`, { server_groups: [group, group] }), {
    status: 200,
    body: { name: 'b', server_groups: [{ id: group, name: 'web', default: false }] },
  })
  t.equal(await revisionOf(id), before + 1)
  t.match(await call('PUT', `servers/${id}`, { user_data: 'Yg==' }), { status: 200, body: { user_data: 'Yg==' } })
  t.equal(await revisionOf(id), before + 2)
  t.strictSame((await call('PUT', `servers/${id}`, { server_groups: [] })).body.server_groups, [])
  t.strictSame(
    await call('PUT', `servers/${id}`, { name: 'c', user_data: '?', server_groups: ['grp-zzzzz'] }),
    invalid('user_data must be base64', 'server_groups: grp-zzzzz does not exist: GET /1.0/server_groups lists them'),
  )
  t.strictSame(
    await call('PUT', `servers/${id}`, { name: 1, server_groups: [2] }),
    invalid('name must be a string or null', 'server_groups.0 must be a string or an object'),
  )
  t.match(await call('GET', `servers/${id}`), { body: { name: 'b', user_data: 'Yg==' } }, 'a refusal changes nothing')
  await remove(id)
})

t.test('metadata options and tags: given at the creation, changed one by one, and published', async (t) => {
  const { id, ...created } = await create({
    metadata_options: { http_tokens: 'required', unknown: 1 },
    tags: { Name: 'web', 'a key': '' },
  })
  t.match(created, { metadata_options: { ...OPTIONS, http_tokens: 'required' }, tags: { Name: 'web', 'a key': '' } })
  t.strictSame(created['metadata_options'], { ...OPTIONS, http_tokens: 'required' })
  const before = await revisionOf(id)
  const changed = await call('PUT', `servers/${id}`, {
    metadata_options: { instance_metadata_tags: 'enabled', http_put_response_hop_limit: 64 },
  })
  t.strictSame(changed.body['metadata_options'], {
    ...OPTIONS,
    http_tokens: 'required',
    instance_metadata_tags: 'enabled',
    http_put_response_hop_limit: 64,
  })
  t.equal(await revisionOf(id), before + 1)
  t.strictSame(
    (await call('PUT', `servers/${id}`, { tags: { Name: 'db' } })).body['tags'],
    { Name: 'db' },
    'tags are replaced as a whole',
  )
  t.equal(await revisionOf(id), before + 2)
  t.match(await call('PUT', `servers/${id}`, { metadata_options: {}, tags: {} }), {
    status: 200,
    body: { metadata_options: { http_tokens: 'required' } },
  })
  t.notOk('tags' in (await call('GET', `servers/${id}`)).body, 'a server without tags has no such field')
  const collected = (await list('servers')).find((server) => server.id === id)
  t.notOk('tags' in collected!, 'only the full form has them')
  await remove(id)
})

t.test('metadata options and tags that a record cannot have are refused, in a creation and a change', async (t) => {
  const { id } = await create()
  const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, i) => [`key-${i}`, '']))
  for (const [body, ...errors] of [
    [
      { tags: { 'a\nb': 'x' }, user_data: '?' },
      'user_data must be base64',
      'tags must have keys of at least one character, without line breaks',
    ],
  ] as const) {
    t.strictSame(await call('POST', 'servers', { image: 'img-deb12', ...body }), invalid(...errors))
    t.strictSame(await call('PUT', `servers/${id}`, body), invalid(...errors))
  }
  const largest = { ...many(48), ['😀'.repeat(128)]: '😀'.repeat(256), n: '\n' }
  const inherited = Object.fromEntries(Object.getOwnPropertyNames(Object.prototype).map((name) => [name, name]))
  for (const tags of [largest, inherited]) {
    t.strictSame((await call('PUT', `servers/${id}`, { tags })).body['tags'], tags)
    t.strictSame((await call('GET', `servers/${id}`)).body['tags'], tags)
  }
  await remove(id)
})

t.test('a server takes back its own representation, and is as before', async (t) => {
  for (const body of [
    {},
    {
      name: 'a',
      user_data: 'YQ==\n',
      cloud_ip: true,
      tags: { Name: 'web' },
      metadata_options: { http_tokens: 'required' },
    },
  ]) {
    const { id } = await create(body)
    const { body: present } = await call('GET', `servers/${id}`)
    t.strictSame(await call('PUT', `servers/${id}`, present), { status: 200, body: present })
    t.strictSame((await call('GET', `servers/${id}`)).body, present)
    t.match(
      await create({ server_groups: present.server_groups }),
      { server_groups: [{ id: present.server_groups[0]!.id }] },
      'so does a create',
    )
    t.match(await call('PUT', `servers/${id}`, { server_groups: [{}, 1, { id: 'grp-zzzzz' }] }), { status: 422 })
    t.strictSame(
      await call('PUT', `servers/${id}`, { server_groups: [{ id: 'grp-zzzzz' }] }),
      invalid('server_groups: grp-zzzzz does not exist: GET /1.0/server_groups lists them'),
    )
  }
  for (const { id } of await list('servers')) await call('DELETE', `servers/${id}`)
  await finishDeletes()
})

t.test('what nothing implements is 501: at the creation and as a change, which changes nothing', async (t) => {
  const empty = { snapshots_schedule: null, snapshots_retention: '', disk_size: 0, volumes: [] }
  const { id } = await create({ name: 'a', ...empty })
  t.match(await call('PUT', `servers/${id}`, empty), { status: 200, body: { snapshots_schedule: null } })
  const count = (await list('servers')).length
  for (const [field, value, why] of [
    ['snapshots_schedule', '0 4 * * *', 'no snapshots are made by a schedule'],
    ['snapshots_retention', '7', 'no snapshots are made by a schedule'],
    ['disk_size', 40_960, 'a disk has the size of the server type'],
    ['volumes', [{ volume: 'vol-12345' }], 'there are no volumes'],
  ] as const) {
    const refusal = refused(501, 'not_implemented', `${field} is not implemented: ${why}`)
    t.match(await call('PUT', `servers/${id}`, { name: 'b', [field]: value }), refusal, field)
    for (const image of [{ image: 'img-deb12' }, {}])
      t.match(await call('POST', 'servers', { ...image, [field]: value }), refusal, `a new one with ${field}`)
  }
  t.match(await call('POST', `servers/${id}/resize`, { new_type: 'typ-large' }), { status: 501 })
  t.equal((await list('servers')).length, count)
  t.match(await call('GET', `servers/${id}`), { body: { name: 'a' } })
  t.match(await call('POST', 'cloud_ips', { mode: 'route' }), {
    status: 501,
    body: { errors: ['mode is not implemented: it is always nat'] },
  })
  for (const mode of ['nat', '', null]) {
    const { status, body } = await call('POST', 'cloud_ips', { mode })
    t.equal(status, 201)
    await call('DELETE', `cloud_ips/${body.id}`)
  }
  await remove(id)
})

t.test('fields of a server that cannot be changed may repeat the present value, and no other', async (t) => {
  const { id } = await create({ name: 'a' })
  for (const present of [
    { image: 'img-deb12', server_type: 'typ-small', zone: 'gb1-a', disk_encrypted: false },
    { image: 'debian-12', server_type: '1gb.ssd', zone: null },
    { server_type: '' },
  ])
    t.match(await call('PUT', `servers/${id}`, present), { status: 200, body: { name: 'a' } })
  for (const [field, value] of [
    ['image', 'img-old03'],
    ['server_type', '4gb.ssd'],
    ['zone', 'gb1-b'],
    ['disk_encrypted', true],
    ['image', 'no such'],
  ] as const)
    t.match(await call('PUT', `servers/${id}`, { name: 'b', [field]: value }), {
      status: 422,
      body: { errors: [`${field} of a server cannot be changed: create another server`] },
    })
  t.match(await call('GET', `servers/${id}`), { body: { name: 'a' } })
  t.match(await call('GET', 'images?status=nonsense'), { status: 400 })
  t.match(await call('GET', 'servers/srv-a%00'), { status: 404 })
  t.match(await call('PUT', 'servers/srv-a%00', { name: 'b' }), { status: 404 })
  await remove(id)
})

t.test('a server has at least the min_ram of its image: 422 with both numbers', async (t) => {
  await setRow(db, 'images', 'img-deb12', { min_ram: 1025 })
  const tooSmall = (type: string, ram: number, needed: number) =>
    invalid(`server_type: ${type} has ${ram} MB of RAM, and the image img-deb12 needs at least ${needed}`)
  for (const server_type of ['1gb.ssd', 'typ-small'])
    t.strictSame(await call('POST', 'servers', { image: 'debian-12', server_type }), tooSmall('1gb.ssd', 1024, 1025))
  const { id } = await create()
  t.match(
    await call('GET', `servers/${id}`),
    { body: { server_type: { id: 'typ-large' } } },
    'the default is the smallest type that has it',
  )
  await setRow(db, 'images', 'img-deb12', { min_ram: 4097 })
  t.match(await call('POST', 'servers', { image: 'debian-12' }), {
    status: 422,
    body: { errors: [/RAM, and the image img-deb12 needs at least 4097$/] },
  })
  await setRow(db, 'images', 'img-deb12', { min_ram: 1024 })
  const exact = await create({ server_type: '1gb.ssd' })
  await setRow(db, 'images', 'img-deb12', { min_ram: null })
  for (const server of [id, exact.id]) await remove(server)
})

t.test('a locked server cannot be deleted', async (t) => {
  const { id } = await create()
  t.match(await call('PUT', `servers/${id}/lock_resource`), { status: 200, body: { locked: true } })
  t.match(await call('PUT', `servers/${id}/lock_resource`), { status: 200, body: { locked: true } })
  t.strictSame(await call('DELETE', `servers/${id}`), conflict(`${id} is locked: unlock it first`))
  t.match(await call('PUT', `servers/${id}/unlock_resource`), { status: 200, body: { locked: false } })
  t.match(await call('DELETE', `servers/${id}`), { status: 202, body: { status: 'deleting' } })
  await finishDeletes()
})

t.test('a delete unmaps the cloud IPs at once, and every change of a deleted server is 409', async (t) => {
  const {
    id,
    cloud_ips: [ip],
    interfaces: [one],
  } = await create({ cloud_ip: true, user_data: 'c2VjcmV0' })
  const { status, body } = await call('DELETE', `servers/${id}`)
  t.equal(status, 202)
  t.strictSame([body.status, body['deleted_at'], body.cloud_ips, body.server_groups], ['deleting', null, [], []])
  t.match(await call('GET', `cloud_ips/${ip!.id}`), { body: { status: 'unmapped', server: null, interface: null } })
  const refuseAll = async (state: string) => {
    for (const [method, path] of [
      ['DELETE', ''],
      ['PUT', ''],
      ['PUT', '/lock_resource'],
      ['PUT', '/unlock_resource'],
    ] as const) {
      t.strictSame(await call(method, `servers/${id}${path}`, {}), conflict(`${id} is ${state}`), `${method} ${path}`)
    }
    for (const destination of [id, one!.id])
      t.match(await call('POST', `cloud_ips/${ip!.id}/map`, { destination }), { status: 404 })
    t.match(await call('POST', 'server_groups', { servers: [{ server: id }] }), {
      status: 422,
      body: { errors: [`servers: ${id} does not exist: GET /1.0/servers lists them`] },
    })
  }
  await refuseAll('deleting')
  t.match(await call('GET', 'account'), { body: { servers_used: 1, ram_used: 1024 } }, 'it counts until it is deleted')
  await finishDeletes()
  await refuseAll('deleted')
  t.match(await call('GET', `servers/${id}`), {
    status: 200,
    body: { status: 'deleted', deleted_at: TIME, interfaces: [], user_data: null },
  })
  const { rows } = await api.database.pool.query<{ text: string }>(
    'select servers::text as text from servers where id = $1',
    [id],
  )
  t.notOk(rows[0]!.text.includes('c2VjcmV0'), 'the database does not have its user_data')
  t.strictSame((await call('GET', 'servers')).body, [])
  t.match(await call('GET', 'account'), { body: { servers_used: 0, ram_used: 0 } })
  t.equal((await call('GET', `interfaces/${one!.id}`)).status, 404)
  t.equal((await call('DELETE', `cloud_ips/${ip!.id}`)).status, 200)
})

t.test('a cloud IP that a create names is reserved for it; one that is not free is 409', async (t) => {
  const {
    body: { id: ip },
  } = await call('POST', 'cloud_ips', {})
  const { id } = await create({ cloud_ip: ip })
  t.match(await call('GET', `cloud_ips/${ip}`), { body: { status: 'reserved', server: { id } } })
  const reserved = `${ip} is reserved for a server that is being created: wait until it is mapped, or delete that server`
  t.strictSame(await call('POST', 'servers', { image: 'img-deb12', cloud_ip: ip }), conflict(`cloud_ip: ${reserved}`))
  for (const [method, path] of [
    ['POST', '/map'],
    ['POST', '/unmap'],
    ['DELETE', ''],
  ] as const) {
    t.strictSame(await call(method, `cloud_ips/${ip}${path}`, { destination: id }), conflict(reserved), path)
  }
  await setRow(db, 'servers', id, { status: 'active' })
  await setRow(db, 'cloud_ips', ip, { status: 'mapped' })
  t.strictSame(
    await call('POST', 'servers', { image: 'img-deb12', cloud_ip: ip }),
    conflict(`cloud_ip: ${ip} is mapped: unmap it first`),
  )
  await remove(id)
})

t.test('a create beyond the limit of cloud IPs creates nothing', async (t) => {
  const { status, body } = await call('POST', 'cloud_ips', {}, TWO)
  t.match([status, body.status], [201, 'unmapped'])
  await call('POST', 'cloud_ips', {}, TWO)
  t.match(await call('POST', 'servers', { image: 'img-deb12', cloud_ip: true }, TWO), {
    status: 403,
    body: {
      error_name: 'account_limit_reached',
      errors: ['the account has 3 cloud IPs, and its limit is 3: delete one first'],
    },
  })
  t.strictSame((await call('GET', 'servers', undefined, TWO)).body, [])
})

t.test('a create waits for a change that takes away what it names, and is refused then', async (t) => {
  await db.insertInto('zones').values({ id: 'zon-gone3', handle: 'gb1-c' }).execute()
  await db.insertInto('hypervisors').values({ name: 'hv-gone', zone_id: 'zon-gone3', ram: 65_536 }).execute()
  await db.insertInto('server_types').values(TINY).execute()
  await db.updateTable('images').set({ status: 'available', public: true }).execute()
  await db.updateTable('accounts').set({ publish_images: true }).execute()
  const named = { image: 'img-deb12', server_type: 'typ-small', zone: 'gb1-a' }
  for (const [body, take, ...errors] of [
    [
      { image: 'img-two02' },
      (tx) => deleteImage(tx, TWO, 'img-two02'),
      'image: img-two02 does not exist: GET /1.0/images lists them',
    ],
    [
      { server_type: 'typ-gone' },
      (tx) => tx.deleteFrom('server_types').where('id', '=', 'typ-gone').execute(),
      'server_type: typ-gone does not exist, or is deprecated: GET /1.0/server_types lists them',
    ],
    [
      { zone: 'gb1-c' },
      async (tx) => {
        await tx.deleteFrom('hypervisors').where('name', '=', 'hv-gone').execute()
        await tx.deleteFrom('zones').where('id', '=', 'zon-gone3').execute()
      },
      'zone: gb1-c does not exist: GET /1.0/zones lists them',
    ],
  ] satisfies (readonly [object, (tx: Tx) => Promise<unknown>, string])[]) {
    t.strictSame(
      await api.during(take, () => call('POST', 'servers', { ...named, ...body })),
      invalid(...errors),
      errors[0],
    )
  }
})

t.test('a create without a type takes the next one if the smallest is deleted at that moment', async (t) => {
  await db.insertInto('server_types').values(TINY).execute()
  const server = await api.during(
    (tx) => tx.deleteFrom('server_types').where('id', '=', TINY.id).execute(),
    () => create(),
  )
  t.match(server, { server_type: { id: 'typ-small' } })
  await remove(server.id)
})

/** Deletes a server, and does what the publisher does when its record is out of the store. */
async function remove(id: string): Promise<void> {
  const { status, body } = await call('DELETE', `servers/${id}`)
  if (status !== 202) throw new Error(JSON.stringify(body))
  await finishDeletes()
}

async function finishDeletes(): Promise<void> {
  const deleting = await db.selectFrom('servers').select('id').where('status', '=', 'deleting').execute()
  await db.transaction().execute(async (tx) => {
    for (const { id } of deleting)
      await finishPublish(tx, id, { status: 'deleting', awaitsCompute: false, isPublished: true, fault: null })
  })
}

t.test('a create in progress holds nothing that a create of another account waits for', async (t) => {
  for (const account of [ONE, TWO]) await setRow(db, 'accounts', account, { ram_limit: 65_536, cloud_ips_limit: 9 })
  const placeOfNext = async (kind: PoolKind) =>
    (
      await sql<{ next: number }>`select last_value + is_called::int as next from ${sql.table(placeOf(kind))}`.execute(
        db,
      )
    ).rows[0]!.next
  const places = await Promise.all(POOL_KINDS.map(placeOfNext))
  const transaction = await openTransaction(db)
  const id = await createServer(transaction, 'none', ONE, {
    ...{ image: 'img-deb12', serverType: undefined, zone: undefined, cloudIp: true, diskEncrypted: false },
  })
  // as in pools that are almost full: both find the same addresses
  for (const [i, kind] of POOL_KINDS.entries())
    await sql`select setval(${placeOf(kind)}::regclass, ${places[i]!}, false)`.execute(db)
  const other = await call('POST', 'servers', { image: 'img-deb12', cloud_ip: true }, TWO)
  t.match(other, { status: 202 })
  await transaction.commit().execute()
  const addressesOf = ({ interfaces, cloud_ips }: Server) => [
    ...interfaces.flatMap(({ ipv4_address, mac_address }) => [ipv4_address, mac_address]),
    ...cloud_ips.map(({ public_ipv4 }) => public_ipv4),
  ]
  const [ofOne, ofTwo] = [(await call('GET', `servers/${id}`)).body, other.body].map(addressesOf)
  t.equal(new Set([...ofOne!, ...ofTwo!]).size, 6)
})

t.test('a create that fits nowhere locks no hypervisor', async (t) => {
  await db.transaction().execute(async (tx) => {
    t.equal(await placeServer(tx, { zoneId: undefined, ram: 1_000_000 }), undefined)
    t.equal((await sql`select from hypervisors for update skip locked`.execute(db)).rows.length, 3)
  })
})
