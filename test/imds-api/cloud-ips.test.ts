/** Cloud IPs and server groups: their forms, mapping, membership, and what is refused. */
import t from 'tap'
import type { Tx } from '../../src/imds-api/database/transaction.ts'
import { aRegion, DATABASE_SERVER, ONE, TWO, WITH_DATABASE_SERVER } from '../support/fixtures/region.ts'
import {
  nestedAccount,
  nestedCloudIp,
  nestedInterface,
  nestedServer,
  nestedServerGroup,
  TIME,
} from '../support/fixtures/representations.ts'
import { aClient, conflict, invalid, missing, refused } from '../support/programs/api-client.ts'
import { anApi } from '../support/programs/api.ts'

interface Body extends Record<string, unknown> {
  id: string
  created_at: string
  status: string
  errors: string[]
  interfaces: { id: string; mac_address: string; ipv4_address: string }[]
  servers: { id: string }[]
}

/** The accounts may have more groups than a server. */
const api = await anApi(t, {
  region: aRegion({
    accounts: aRegion().accounts.map((account) => ({ ...account, server_groups_limit: 1000 })),
    ...WITH_DATABASE_SERVER,
  }),
})
const { db } = api.database
const { call, create, list } = aClient<Body>(api)
const aServer = (body: object = {}) => create('servers', { image: 'img-deb12', ...body })
/** The servers that a task enqueues for publishing. */
const enqueuedBy = async (task: () => Promise<unknown>) => {
  await db.deleteFrom('outbox').execute()
  await task()
  return [
    ...new Set((await db.selectFrom('outbox').select('server_id').execute()).map(({ server_id }) => server_id)),
  ].sort()
}

t.test('a cloud IP in its full, collected and nested form, free, mapped to a server and to a group', async (t) => {
  const translators = [{ protocol: 'tcp', incoming: 443, outgoing: 8443 }]
  const { status, body } = await call('POST', 'cloud_ips', {
    name: 'web',
    reverse_dns: 'www.example.com',
    port_translators: [{ protocol: 'tcp', incoming: '443', outgoing: '8443' }],
  })
  t.equal(status, 201)
  t.match(body.id, /^cip-[0-9a-z]{5}$/)
  const nested = (state: string) =>
    nestedCloudIp(body.id, {
      name: 'web',
      public_ipv4: '203.0.113.1',
      public_ipv6: '2001:db8:1::1',
      status: state,
      reverse_dns: 'www.example.com',
    })
  const free = {
    ...nested('unmapped'),
    port_translators: translators,
    account: nestedAccount(ONE),
    interface: null,
    server: null,
    server_group: null,
    load_balancer: null,
    database_server: null,
  }
  t.strictSame(body, free)
  t.strictSame(await call('GET', `cloud_ips/${body.id}`), { status: 200, body: free })
  t.strictSame(await call('GET', 'cloud_ips'), { status: 200, body: [free] })

  const {
    id,
    created_at,
    interfaces: [one],
  } = await aServer({ name: 'a' })
  const server = nestedServer(id, { name: 'a', status: 'creating', created_at, started_at: null, deleted_at: null })
  const mapped = {
    ...free,
    ...nested('mapped'),
    interface: nestedInterface(one!.id, one!.mac_address, one!.ipv4_address),
    server,
  }
  t.strictSame(await call('POST', `cloud_ips/${body.id}/map`, { destination: one!.id }), { status: 202, body: mapped })
  t.strictSame(await call('GET', 'cloud_ips'), { status: 200, body: [mapped] })
  t.strictSame((await call('GET', `servers/${id}`)).body['cloud_ips'], [nested('mapped')])
  t.strictSame(await call('POST', `cloud_ips/${body.id}/unmap`), { status: 202, body: free })

  const group = await create('server_groups', { name: 'g', description: 'd', servers: [{ server: id }] })
  const nestedGroup = nestedServerGroup(group.id, {
    name: 'g',
    description: 'd',
    created_at: group.created_at,
    default: false,
  })
  t.strictSame(await call('POST', `cloud_ips/${body.id}/map`, { destination: group.id }), {
    status: 202,
    body: { ...free, ...nested('mapped'), server_group: nestedGroup },
  })
  t.strictSame((await call('POST', `cloud_ips/${body.id}/unmap`)).body, free)
  t.strictSame(await call('DELETE', `cloud_ips/${body.id}`), { status: 200, body: free })
  t.equal((await call('GET', `cloud_ips/${body.id}`)).status, 404)
  t.strictSame(
    await db
      .selectFrom('allocations')
      .select('number')
      .where('holder', '=', body.id)
      .where('freed_account', 'is', null)
      .execute(),
    [],
    'its addresses are free',
  )
})

t.test('an update changes only the fields that it has; an empty reverse_dns clears it', async (t) => {
  const { id } = await create('cloud_ips', { name: 'a', reverse_dns: 'a.example.com' })
  t.match(await call('PUT', `cloud_ips/${id}`, {}), {
    status: 200,
    body: { name: 'a', reverse_dns: 'a.example.com', port_translators: [] },
  })
  t.match(await call('PUT', `cloud_ips/${id}`, { name: 'b' }), {
    status: 200,
    body: { name: 'b', reverse_dns: 'a.example.com' },
  })
  for (const name of ['mail_1.example.com', '*.example.com'])
    t.match(await call('PUT', `cloud_ips/${id}`, { reverse_dns: name }), { status: 200, body: { reverse_dns: name } })
  t.match(await call('PUT', `cloud_ips/${id}`, { reverse_dns: '' }), {
    status: 200,
    body: { name: 'b', reverse_dns: '' },
  })
  t.match(
    await call('PUT', `cloud_ips/${id}`, {
      reverse_dns: 'b.example.com.',
      port_translators: [{ protocol: 'udp', incoming: 1, outgoing: 65_535 }],
    }),
    { body: { reverse_dns: 'b.example.com.', port_translators: [{ incoming: 1 }] } },
  )
  t.match(await call('PUT', `cloud_ips/${id}`, { reverse_dns: null, port_translators: [] }), {
    status: 200,
    body: { reverse_dns: '' },
  })
  await call('DELETE', `cloud_ips/${id}`)
})

t.test('no two port translators have the same protocol and incoming port', async (t) => {
  const one = { protocol: 'tcp', incoming: 80, outgoing: 80 }
  t.strictSame(
    await call('POST', 'cloud_ips', { port_translators: [one, { ...one, incoming: '70000' }, one] }),
    invalid(
      'port_translators.1 must have ports from 1 to 65535',
      'port_translators.2 has the protocol and incoming port of an earlier one',
    ),
  )
})

t.test('each port and protocol that is taken, and each that is not', async (t) => {
  const { id } = await create('cloud_ips')
  const put = (...translators: object[]) => call('PUT', `cloud_ips/${id}`, { port_translators: translators })
  const one = { protocol: 'tcp', incoming: 80, outgoing: 8080 }
  const taken = [1, 65_535, '1', '00443', '65535', 443.0]
  const refusedPorts = [
    0,
    65_536,
    -1,
    1.5,
    '0',
    '65536',
    '-1',
    '1.0',
    '4e2',
    '0x50',
    ' 80',
    '',
    'http',
    '100000',
    '８０',
  ]
  for (const field of ['incoming', 'outgoing']) {
    for (const port of taken) {
      const { status, body } = await put({ ...one, [field]: port })
      const given = [{ ...one, [field]: Number(port) }]
      t.strictSame([status, body['port_translators']], [200, given], `${field} ${JSON.stringify(port)}`)
    }
    for (const port of [...refusedPorts, null, true, [], {}])
      t.equal((await put({ ...one, [field]: port })).status, 422, `${field} ${JSON.stringify(port)}`)
    t.strictSame(await put({ ...one, [field]: undefined }), invalid(`port_translators.0.${field} is missing`))
  }
  for (const protocol of ['TCP', 'icmp', '', null, 6, undefined])
    t.equal((await put({ ...one, protocol })).status, 422, JSON.stringify(protocol))
  for (const twice of [one, { ...one, incoming: '80' }, { ...one, outgoing: 1 }])
    t.strictSame(
      await put(one, twice),
      invalid('port_translators.1 has the protocol and incoming port of an earlier one'),
    )
  const many = Array.from({ length: 100 }, (_, i) => ({ ...one, incoming: i + 1 }))
  t.strictSame((await put(...many)).body['port_translators'], many)
  t.equal((await put(...many, { ...one, incoming: 101 })).status, 422)
  const both = [{ ...one, protocol: 'udp' }, one]
  t.strictSame((await put({ ...both[0], more: 1 }, one)).body['port_translators'], both, 'unknown fields are left out')
  for (const port_translators of [null, {}, 'x'])
    t.equal((await call('PUT', `cloud_ips/${id}`, { port_translators })).status, 422)
  await call('DELETE', `cloud_ips/${id}`)
})

t.test('a mapped cloud IP cannot be mapped or deleted, and a free one not unmapped', async (t) => {
  const [{ id }, server] = [await create('cloud_ips'), await aServer()]
  t.strictSame(await call('POST', `cloud_ips/${id}/unmap`), conflict(`${id} is not mapped`))
  t.match(await call('POST', `cloud_ips/${id}/map`, { destination: server.id }), {
    status: 202,
    body: { interface: { id: server.interfaces[0]!.id }, server: { id: server.id } },
  })
  for (const answer of [
    await call('POST', `cloud_ips/${id}/map`, { destination: server.id }),
    await call('DELETE', `cloud_ips/${id}`),
  ]) {
    t.strictSame(answer, conflict(`${id} is mapped: unmap it first`))
  }
  t.match(await call('POST', `cloud_ips/${id}/unmap`), { status: 202 })
})

t.test('a destination of another account is 404, and one that cannot have a cloud IP is 422', async (t) => {
  const { id } = await create('cloud_ips')
  const theirs = await create('servers', { image: 'img-deb12' }, TWO)
  const theirGroup = await create('server_groups', {}, TWO)
  for (const destination of [
    theirs.id,
    theirs.interfaces[0]!.id,
    theirGroup.id,
    'srv-zzzzz',
    'int-zzzzz',
    'grp-zzzzz',
    'lba-zzzzz',
    'dbs-zzzzz',
  ]) {
    t.strictSame(await call('POST', `cloud_ips/${id}/map`, { destination }), missing(`the destination ${destination}`))
  }
  for (const destination of ['', 'cip-aaaaa', 'nonsense']) {
    t.strictSame(
      await call('POST', `cloud_ips/${id}/map`, { destination }),
      invalid('destination must be the id of an interface, a server, a server group or a database server'),
    )
  }
  t.match(await call('POST', `cloud_ips/${id}/map`, { destination: 1 }), {
    status: 422,
    body: { errors: ['destination must be a string'] },
  })
  await call('DELETE', `cloud_ips/${id}`)
})

t.test('a pool without a free address is 503, and nothing is created', async (t) => {
  await db
    .updateTable('address_pools')
    .set({ range: '2001:db8:1::1-2001:db8:1::1' })
    .where('kind', '=', 'public_ipv6')
    .execute()
  const before = (await call('GET', 'account')).body['cloud_ips_used']
  await db
    .insertInto('allocations')
    .expression((eb) =>
      eb
        .selectFrom('address_pools')
        .select(['id', eb.val(0).as('number'), eb.val('cip-other').as('holder')])
        .where('kind', '=', 'public_ipv6'),
    )
    .onConflict((conflict) => conflict.doNothing())
    .execute()
  t.strictSame(
    await call('POST', 'cloud_ips', {}),
    refused(503, 'insufficient_capacity', 'the region has no free public address'),
  )
  t.equal((await call('GET', 'account')).body['cloud_ips_used'], before)
  await db.updateTable('address_pools').set({ range: '2001:db8:1::/64' }).where('kind', '=', 'public_ipv6').execute()
})

t.test('a server group in its full, collected and nested form', async (t) => {
  const { id, created_at } = await aServer({ name: 'm' })
  const { status, body } = await call('POST', 'server_groups', {
    name: 'web',
    description: 'all of web',
    servers: [{ server: id }, { server: id }],
  })
  t.equal(status, 202)
  t.match(body, { id: /^grp-[0-9a-z]{5}$/, created_at: TIME })
  const nested = nestedServerGroup(body.id, {
    name: 'web',
    description: 'all of web',
    created_at: body.created_at,
    default: false,
  })
  const full = {
    ...nested,
    account: nestedAccount(ONE),
    servers: [nestedServer(id, { name: 'm', status: 'creating', created_at, started_at: null, deleted_at: null })],
    firewall_policy: null,
  }
  t.strictSame(body, full)
  t.strictSame(await call('GET', `server_groups/${body.id}`), { status: 200, body: full })
  t.strictSame(
    (await list('server_groups')).find((group) => group.id === body.id),
    full,
  )
  t.match(await call('PUT', `server_groups/${body.id}`, { name: 'new', description: null }), {
    status: 202,
    body: { name: 'new', description: '' },
  })
  t.match(await call('PUT', `server_groups/${body.id}`, {}), {
    status: 202,
    body: { name: 'new', description: '', servers: [{ id }] },
  })
  t.strictSame(await call('DELETE', `server_groups/${body.id}`), conflict(`${body.id} has servers: remove them first`))
  t.match(await call('POST', `server_groups/${body.id}/remove_servers`, { servers: [{ server: id }] }), { status: 202 })
  t.match(await call('DELETE', `server_groups/${body.id}`), { status: 202, body: { id: body.id, servers: [] } })
  t.equal((await call('GET', `server_groups/${body.id}`)).status, 404)
  t.match(await create('server_groups'), { name: '', description: '', servers: [] })
})

t.test('the default group stays', async (t) => {
  const group = (await list('server_groups')).find((one) => one['default'])
  t.strictSame(
    await call('DELETE', `server_groups/${group!.id}`),
    conflict(`${group!.id} is the default server group of the account`),
  )
})

t.test('members: add, remove and move, with every id that is wrong at once', async (t) => {
  const [a, b] = [await aServer(), await aServer()]
  const [from, to] = [await create('server_groups', { name: 'from' }), await create('server_groups', { name: 'to' })]
  const members = (...ids: string[]) => ({ servers: ids.map((server) => ({ server })) })
  const idsOf = (answer: { body: Body }) => answer.body.servers.map(({ id }) => id)
  t.strictSame(
    idsOf(await call('POST', `server_groups/${from.id}/add_servers`, members(a.id, b.id, a.id))),
    [a.id, b.id].sort(),
  )
  t.equal((await call('POST', `server_groups/${from.id}/add_servers`, members(a.id))).status, 202, 'a member already')
  t.strictSame(
    await call('POST', `server_groups/${from.id}/add_servers`, members('srv-yyyyy', a.id, 'srv-zzzzz')),
    invalid(
      'servers: srv-yyyyy does not exist: GET /1.0/servers lists them',
      'servers: srv-zzzzz does not exist: GET /1.0/servers lists them',
    ),
  )
  t.strictSame(
    await enqueuedBy(async () => {
      t.strictSame(
        idsOf(await call('POST', `server_groups/${from.id}/move_servers`, { ...members(b.id), destination: to.id })),
        [a.id],
      )
    }),
    [b.id],
  )
  t.strictSame(idsOf(await call('GET', `server_groups/${to.id}`)), [b.id])
  t.strictSame(
    await call('POST', `server_groups/${from.id}/move_servers`, { ...members(b.id), destination: to.id }),
    invalid(`servers: ${b.id} is not in ${from.id}`),
  )
  t.strictSame(
    await call('POST', `server_groups/${from.id}/move_servers`, { ...members(a.id), destination: 'grp-zzzzz' }),
    missing('the server group grp-zzzzz'),
  )
  t.strictSame(
    await call('POST', `server_groups/${from.id}/remove_servers`, members(b.id)),
    invalid(`servers: ${b.id} is not in ${from.id}`),
  )
  t.strictSame(await call('POST', `server_groups/${from.id}/add_servers`, {}), invalid('servers is missing'))
  t.strictSame(
    await call('POST', 'server_groups', { name: 'a\nb', servers: [{}, 1] }),
    invalid(
      'name must be one line without control characters',
      'servers.0.server is missing',
      'servers.1 must be an object',
    ),
  )
  t.strictSame(
    await enqueuedBy(() => call('PUT', `server_groups/${to.id}`, { name: 'renamed' })),
    [b.id],
    'guests see the name',
  )
  t.strictSame(
    await enqueuedBy(() => call('PUT', `server_groups/${to.id}`, { description: 'x' })),
    [],
    'and not the description',
  )
})

t.test('a cloud IP of a group is one of each member, and members that join or leave are published', async (t) => {
  const [a, b] = [await aServer(), await aServer()]
  const group = await create('server_groups', { servers: [{ server: a.id }, { server: b.id }] })
  await db.updateTable('accounts').set({ cloud_ips_limit: 100 }).execute()
  const { id } = await create('cloud_ips')
  t.strictSame(
    await enqueuedBy(() => call('POST', `cloud_ips/${id}/map`, { destination: group.id })),
    [a.id, b.id].sort(),
  )
  for (const action of ['remove_servers', 'add_servers'])
    t.strictSame(
      await enqueuedBy(() => call('POST', `server_groups/${group.id}/${action}`, { servers: [{ server: a.id }] })),
      [a.id],
      action,
    )
  t.strictSame(await enqueuedBy(() => call('PUT', `servers/${a.id}`, { server_groups: [] })), [a.id])
  t.strictSame(await enqueuedBy(() => call('POST', `cloud_ips/${id}/unmap`)), [b.id])
  t.strictSame(await enqueuedBy(() => call('POST', `cloud_ips/${id}/map`, { destination: a.interfaces[0]!.id })), [
    a.id,
  ])
  t.strictSame(await enqueuedBy(() => call('POST', `cloud_ips/${id}/unmap`)), [a.id])
  t.equal((await call('POST', `server_groups/${group.id}/remove_servers`, { servers: [{ server: b.id }] })).status, 202)
  await call('POST', `cloud_ips/${id}/map`, { destination: group.id })
  t.equal((await call('DELETE', `server_groups/${group.id}`)).status, 202)
  t.match(
    await call('GET', `cloud_ips/${id}`),
    { body: { status: 'unmapped', server_group: null } },
    'a delete of its group unmaps it',
  )
})

t.test('a server is in at most 256 groups and has at most 64 cloud IPs, as its record can hold: 422', async (t) => {
  const [server, other] = [await aServer(), await aServer()]
  await db
    .insertInto('server_groups')
    .values(
      Array.from({ length: 255 }, (_, i) => ({
        id: `grp-many-${i}`,
        account_id: ONE,
        name: '',
        description: '',
        is_default: false,
      })),
    )
    .execute()
  await db
    .insertInto('server_group_members')
    .expression((eb) =>
      eb
        .selectFrom('server_groups')
        .select(['id', eb.val(server.id).as('server_id')])
        .where('id', 'like', 'grp-many-%'),
    )
    .execute()
  const [group, from] = [await create('server_groups'), await create('server_groups')]
  const members = (...ids: string[]) => ({ servers: ids.map((id) => ({ server: id })) })
  const tooMany = invalid(`${server.id} would be in 257 server groups: the most are 256`)
  t.strictSame(await call('POST', `server_groups/${group.id}/add_servers`, members(other.id, server.id)), tooMany)
  t.strictSame(await call('POST', 'server_groups', members(other.id, server.id)), tooMany)
  t.equal((await call('POST', `server_groups/${from.id}/add_servers`, members(other.id))).status, 202)
  t.strictSame((await call('GET', `server_groups/${group.id}`)).body.servers, [], 'a refusal changes nothing')
  const groups = ((await call('GET', `servers/${server.id}`)).body['server_groups'] as Body[]).map(({ id }) => id)
  t.equal(groups.length, 256)
  t.equal((await call('PUT', `servers/${other.id}`, { server_groups: groups })).status, 200, 'so many are possible')
  for (const request of [
    ['PUT', `servers/${other.id}`, {}],
    ['POST', 'servers', { image: 'img-deb12' }],
  ] as const) {
    t.strictSame(
      await call(request[0], request[1], { ...request[2], server_groups: [...groups, group.id] }),
      invalid('server_groups must have at most 256 elements'),
    )
  }
  // 257: more than the limit
  await db.insertInto('server_group_members').values({ server_group_id: from.id, server_id: other.id }).execute()
  t.equal(
    (await call('POST', `server_groups/${from.id}/move_servers`, { ...members(other.id), destination: group.id }))
      .status,
    422,
  )
  t.equal((await call('POST', `server_groups/${from.id}/remove_servers`, members(other.id))).status, 202)
  t.equal(
    (await call('POST', `server_groups/${groups[0]!}/move_servers`, { ...members(other.id), destination: group.id }))
      .status,
    202,
    'a move leaves their number',
  )

  const [direct, byGroup] = [await aServer({ server_groups: [group.id] }), await create('cloud_ips')]
  await db
    .insertInto('cloud_ips')
    .values(
      Array.from({ length: 63 }, (_, i) => ({
        id: `cip-many-${i}`,
        account_id: ONE,
        name: '',
        public_ipv4: `m4-${i}`,
        public_ipv6: `m6-${i}`,
        reverse_dns: null,
        port_translators: '[]',
        status: 'mapped' as const,
        interface_id: direct.interfaces[0]!.id,
        server_group_id: null,
      })),
    )
    .execute()
  t.equal((await call('POST', `cloud_ips/${byGroup.id}/map`, { destination: group.id })).status, 202, 'the 64th')
  const { id: last } = await create('cloud_ips')
  const tooManyIps = invalid(`${direct.id} would have 65 cloud IPs: the most are 64`)
  for (const destination of [direct.id, direct.interfaces[0]!.id, group.id])
    t.strictSame(await call('POST', `cloud_ips/${last}/map`, { destination }), tooManyIps, destination)
  t.equal((await call('POST', `cloud_ips/${last}/map`, { destination: from.id })).status, 202)
  t.strictSame(await call('POST', `server_groups/${from.id}/add_servers`, members(direct.id)), tooManyIps)
  t.strictSame(await call('PUT', `servers/${direct.id}`, { server_groups: [group.id, from.id] }), tooManyIps)
  for (const { id } of [server, other, direct]) await call('DELETE', `servers/${id}`)
  await db.deleteFrom('cloud_ips').where('id', 'like', 'cip-many-%').execute()
})

t.test('a server that joins a group while its cloud IP is mapped or unmapped is published after both', async (t) => {
  const [{ id }, group] = [await create('cloud_ips'), await create('server_groups')]
  for (const [verb, status] of [
    ['map', 'mapped'],
    ['unmap', 'unmapped'],
  ] as const) {
    const server = await aServer()
    const join = (tx: Tx) =>
      tx.insertInto('server_group_members').values({ server_group_id: group.id, server_id: server.id }).execute()
    t.strictSame(
      (
        await enqueuedBy(() =>
          api.during(join, () => call('POST', `cloud_ips/${id}/${verb}`, { destination: group.id })),
        )
      ).includes(server.id),
      true,
      verb,
    )
    t.match(await call('GET', `cloud_ips/${id}`), { body: { status } })
  }
})

t.test('a cloud IP cannot be mapped to a server or database server whose deletion is under way', async (t) => {
  const [{ id }, server] = [await create('cloud_ips'), await aServer()]
  for (const [table, deleted, destination] of [
    ['servers', server.id, server.interfaces[0]!.id],
    ['database_servers', DATABASE_SERVER, DATABASE_SERVER],
  ] as const) {
    const remove = (tx: Tx) => tx.updateTable(table).set({ status: 'deleting' }).where('id', '=', deleted).execute()
    t.strictSame(
      await api.during(remove, () => call('POST', `cloud_ips/${id}/map`, { destination })),
      missing(`the destination ${destination}`),
    )
  }
})
