/** Applying a region file to a database: the difference, what is removed, and what changes for guests. */
import t from 'tap'
import { parse } from 'yaml'
import { createServer } from '../../src/imds-api/changes/create-server.ts'
import { lockAccount } from '../../src/imds-api/changes/limits.ts'
import { formatId } from '../../src/imds-api/model/ids.ts'
import { POOL_KINDS } from '../../src/imds-api/model/pools.ts'
import { composeMany } from '../../src/imds-api/publish/compose.ts'
import { RowInUse } from '../../src/imds-api/region/apply-table.ts'
import type { RegionFile } from '../../src/imds-api/region/schema.ts'
import {
  ADA,
  aRegion,
  GRACE,
  GRACES_KEY,
  MARY,
  ONE,
  STORAGE_CLIENT,
  TWO,
  withFiles,
  withMary,
} from '../support/fixtures/region.ts'
import { readDocument } from '../support/openapi-document.ts'
import { anApi, apply, rowOf, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { executed } from '../tools/documents.ts'

const api = await anApi(t)
const { db } = api.database

t.test('applying a region file again changes nothing', async (t) => {
  t.strictSame(await apply(api.database, aRegion()), [])
})

t.test('the difference is made and named; what the file does not have stays until it is removed', async (t) => {
  const { accounts, users, zones } = aRegion()
  const changed: Partial<RegionFile> = {
    zones: [...zones, { id: 'zon-cccc3', handle: 'gb1-c' }],
    users: [...users, { id: 'usr-new03', name: 'New', email_address: 'new@example.com' }],
    accounts: [
      { ...accounts[0]!, cloud_ips_limit: 9, collaborators: ['usr-new03'] },
      ...accounts.slice(1),
      { ...accounts[1]!, id: 'acc-new03', owner: 'usr-new03', name: 'New' },
    ],
  }
  const difference = [
    '+ zone zon-cccc3',
    '+ user usr-new03',
    `~ account ${ONE}: cloud_ips_limit 5 -> 9`,
    '+ account acc-new03',
    `+ collaboration of usr-new03 in ${ONE}`,
    '+ collaboration of usr-ada01 in acc-new03',
    '+ default server group of acc-new03',
  ]
  t.strictSame(await apply(api.database, aRegion(changed)), difference)
  t.strictSame(await apply(api.database, aRegion(changed)), [])
  t.strictSame(await apply(api.database, aRegion()), [`~ account ${ONE}: cloud_ips_limit 9 -> 5`])
  const removed = { accounts: ['acc-new03'], users: ['usr-new03'], zones: ['zon-cccc3'] }
  t.strictSame(await apply(api.database, aRegion(), removed), [
    '- account acc-new03',
    '- user usr-new03',
    '- zone zon-cccc3',
  ])
  t.strictSame(await apply(api.database, aRegion(), removed), [])
})

t.test('what is in use is not removed, and then nothing is changed', async (t) => {
  t.match(await api.call('POST', '/1.0/servers', { image: 'img-deb12', zone: 'gb1-a' }), { status: 202 })
  for (const [table, key] of [
    ['server_types', 'typ-small'],
    ['zones', 'zon-aaaa1'],
    ['accounts', ONE],
    ['users', ADA],
  ] as const)
    await t.rejects(apply(api.database, aRegion(), { [table]: [key] }), new RowInUse(table, key))
  t.strictSame(await apply(api.database, aRegion()), [])
})

t.test('a handle of another row is refused with what to do, also where the file removes the other', async (t) => {
  const { zones } = aRegion()
  const [first, second] = zones as [(typeof zones)[number], (typeof zones)[number]]
  const refusal = (id: string, handle: string) => ({
    message: `zone ${id}: Key (handle)=(${handle}) already exists. First apply a file in which the other row has another value. Nothing was changed`,
  })
  await t.rejects(
    apply(api.database, aRegion({ zones: [{ ...first, id: 'zon-cccc3' }, second] }), { zones: [first.id] }),
    refusal('zon-cccc3', first.handle),
  )
  await t.rejects(
    apply(
      api.database,
      aRegion({
        zones: [
          { ...first, handle: second.handle },
          { ...second, handle: first.handle },
        ],
      }),
    ),
    refusal(first.id, second.handle),
  )
  t.strictSame(await apply(api.database, aRegion()), [])
})

t.test('what only deleted servers have used is removed; they still show it', async (t) => {
  const { zones, server_types, hypervisors, images } = aRegion()
  const removed = {
    zone: { id: 'zon-cccc3', handle: 'gb1-c' },
    server_type: { id: 'typ-third', handle: '2gb.ssd', name: 'Medium', cores: 2, ram: 2048, disk_size: 30_720 },
    image: { id: 'img-third', handle: 'debian-13', name: 'Debian 13', disk_size: 2048, virtual_size: 10_240 },
  }
  const all = aRegion({
    zones: [...zones, removed.zone],
    server_types: [...server_types, removed.server_type],
    hypervisors: [...hypervisors, { name: 'hv-4', zone: 'gb1-c', ram: 65_536 }],
    images: [...images, removed.image],
  })
  const { database, call, startPublisher, drained } = await anApi(t, { region: all })
  await startPublisher()
  const asked = { image: 'debian-13', server_type: '2gb.ssd', zone: 'gb1-c' }
  const {
    body: { id },
  } = (await call('POST', '/1.0/servers', asked)) as { readonly body: { readonly id: string } }
  await drained()
  const keys = { images: ['img-third'], hypervisors: ['hv-4'], server_types: ['typ-third'], zones: ['zon-cccc3'] }
  for (const [table, [key]] of Object.entries(keys) as [keyof typeof keys, string[]][])
    await t.rejects(apply(database, aRegion(), { [table]: [key!] }), new RowInUse(table, key!))
  await call('DELETE', `/1.0/servers/${id}`)
  await drained()
  const lines = ['- image img-third', '- hypervisor hv-4', '- server type typ-third', '- zone zon-cccc3']
  t.strictSame([await apply(database, aRegion(), keys), await apply(database, aRegion(), keys)], [lines, []])
  t.match(await call('GET', `/1.0/servers/${id}`), {
    status: 200,
    body: { status: 'deleted', image: { id: 'img-third' }, server_type: removed.server_type, zone: removed.zone },
  })
  t.match(await call('POST', '/1.0/servers', asked), {
    status: 422,
    body: {
      errors: [
        'image: debian-13 does not exist',
        'server_type: 2gb.ssd does not exist, or is deprecated',
        'zone: gb1-c does not exist',
      ],
    },
  })
  for (const path of ['zones', 'server_types', 'images', 'account'])
    t.notMatch(JSON.stringify((await call('GET', `/1.0/${path}`)).body), /zon-cccc3|typ-third|img-third/, path)
  for (const path of [
    'zones/gb1-c',
    'zones/zon-cccc3',
    'server_types/2gb.ssd',
    'server_types/typ-third',
    'images/img-third',
  ])
    t.match(await call('GET', `/1.0/${path}`), { status: 404 }, path)
  t.match(
    await call('POST', '/1.0/servers', { image: 'img-deb12' }),
    { status: 202, body: { zone: { handle: 'gb1-a' } } },
    'no server is placed on a hypervisor that is removed',
  )
  const successor = { ...removed.server_type, id: 'typ-forth' }
  const [type, zone, image] = [
    [...server_types, successor],
    [...zones, { ...removed.zone, id: 'zon-dddd4' }],
    [...images, { ...removed.image, id: 'img-forth' }],
  ]
  t.strictSame(
    await apply(database, aRegion({ server_types: type, zones: zone, images: image })),
    ['+ zone zon-dddd4', '+ server type typ-forth', '+ image img-forth'],
    'another may have the handle',
  )
  await apply(database, aRegion(), { server_types: ['typ-forth'], zones: ['zon-dddd4'], images: ['img-forth'] })
  t.match(await apply(database, all), [
    /^~ zone zon-cccc3: removed_at .* -> null$/,
    /^~ server type typ-third: removed_at .* -> null$/,
    /^~ hypervisor hv-4: removed_at .* -> null$/,
    '~ image img-third: handle null -> debian-13, status deleted -> available',
  ])
  t.match(
    await call('POST', '/1.0/servers', asked),
    { status: 202, body: { zone: removed.zone, server_type: removed.server_type } },
    'the file brings them back',
  )
})

t.test('what a server in creation uses is not removed, though only a deleted server has used it', async (t) => {
  const { database, call, during, startPublisher, drained } = await anApi(t)
  await startPublisher()
  const {
    body: { id },
  } = (await call('POST', '/1.0/servers', { image: 'img-deb12', server_type: 'typ-large' })) as {
    readonly body: { readonly id: string }
  }
  await drained()
  await call('DELETE', `/1.0/servers/${id}`)
  await drained()
  const asked = {
    image: 'img-deb12',
    name: '',
    serverType: 'typ-large',
    zone: undefined,
    userData: null,
    serverGroups: undefined,
    cloudIp: false,
    diskEncrypted: false,
    compatibilityMode: undefined,
    metadataOptions: undefined,
    tags: {},
    waitFor: undefined,
  }
  const remove = () => apply(database, aRegion(), { server_types: ['typ-large'] })
  await t.rejects(
    during((tx) => createServer(tx, 'none', ONE, asked), remove),
    new RowInUse('server_types', 'typ-large'),
  )
  t.match(await call('GET', '/1.0/server_types/typ-large'), { status: 200 })
})

t.test('a user whom the account invites while a file makes it a collaborator has one collaboration', async (t) => {
  const { database, during } = await anApi(t, { region: withMary() })
  const {
    accounts: [one, two],
  } = withMary()
  const invitation = {
    id: 'col-inv01',
    account_id: ONE,
    user_id: null,
    inviter_id: ADA,
    email: 'mary@example.com',
    role: 'admin',
    status: 'pending',
    started_at: null,
    finished_at: null,
  } as const
  const difference = await during(
    async (tx) => {
      await lockAccount(tx, ONE)
      await tx.insertInto('collaborations').values(invitation).execute()
    },
    () => apply(database, withMary({ accounts: [{ ...one!, collaborators: [MARY] }, two!] })),
  )
  t.strictSame(difference, [`~ collaboration of ${MARY} in ${ONE}: pending -> accepted`])
})

t.test('a server is published again when its record changes with the file, and only then', async (t) => {
  const {
    name,
    domain,
    zones: [zoneA, zoneB],
    server_types: [small, large],
    hypervisors,
    users: [ada, grace],
    images,
  } = aRegion()
  const { database, call } = await anApi(t)
  const create = async (server_type: string, zone: string) =>
    ((await call('POST', '/1.0/servers', { image: 'img-deb12', server_type, zone })).body as { readonly id: string }).id
  const [smallA, largeA, smallB] = [
    await create(small!.id, 'gb1-a'),
    await create(large!.id, 'gb1-a'),
    await create(small!.id, 'gb1-b'),
  ]
  const all = [smallA, largeA, smallB]
  const recordsOf = async () =>
    new Map(
      await Promise.all(
        all.map(
          async (id) =>
            [id, JSON.stringify({ ...(await composeMany(database.db, [id]))[0]!.record, revision: 0 })] as const,
        ),
      ),
    )
  const hypervisorsOf = (handle: string) =>
    hypervisors.map((one) => ({ ...one, zone: one.zone === zoneA!.handle ? handle : one.zone }))
  const changes: readonly (readonly [string, Partial<RegionFile>, readonly string[]])[] = [
    ['name', { name: `${name}-x` }, all],
    ['domain', { domain: `x.${domain}`, library_ftp_host: `ftp.library.${domain}` }, all],
    ['library_ftp_host', { library_ftp_host: 'ftp.example.com' }, []],
    [
      'zone',
      { zones: [{ ...zoneA!, handle: 'gb1-x' }, zoneB!], hypervisors: hypervisorsOf('gb1-x') },
      [smallA, largeA],
    ],
    ['handle of a type', { server_types: [{ ...small!, handle: 'small' }, large!] }, [smallA, smallB]],
    [
      'type',
      {
        server_types: [
          small!,
          { ...large!, name: 'x', status: 'deprecated', cores: 9, ram: 9216, disk_size: 1, storage_type: 'network' },
        ],
      },
      [],
    ],
    ['hypervisor', { hypervisors: hypervisors.map((one) => ({ ...one, ram: one.ram + 1 })) }, []],
    ['image', { images: images.map((one) => ({ ...one, handle: `${one.id}-x`, disk_size: 1 })) }, []],
    ['user', { users: [{ ...ada!, email_address: 'augusta@example.com', email_verified: false }, grace!] }, []],
    [
      'new entries',
      {
        zones: [zoneA!, zoneB!, { id: 'zon-cccc3', handle: 'gb1-c' }],
        server_types: [small!, large!, { ...small!, id: 'typ-third', handle: 'third' }],
      },
      [],
    ],
  ]
  for (const [what, change, published] of changes) {
    const before = await recordsOf()
    await database.db.deleteFrom('outbox').execute()
    t.not((await apply(database, aRegion(change))).length, 0, what)
    const enqueued = (await database.db.selectFrom('outbox').select('server_id').execute()).map(
      ({ server_id }) => server_id,
    )
    t.strictSame(enqueued.toSorted(), published.toSorted(), what)
    const after = await recordsOf()
    t.strictSame(all.filter((id) => before.get(id) !== after.get(id)).sort(), published.toSorted(), what)
    await apply(database, aRegion())
  }
})

t.test('an id of the region file is never given to a new resource', async (t) => {
  const { id } = (await api.call('POST', '/1.0/server_groups', {})).body as { id: string }
  t.match(id, /^grp-/)
  await db
    .insertInto('given_ids')
    .values({ id: nextAfter(id) })
    .execute()
  t.not(((await api.call('POST', '/1.0/server_groups', {})).body as { id: string }).id, nextAfter(id))
})

t.test('a password and a TOTP secret come from files; applied again, the same ones are no difference', async (t) => {
  await apply(api.database, aRegion())
  const [ada, grace] = aRegion().users as [RegionFile['users'][number], RegionFile['users'][number]]
  const fromFiles = aRegion({ users: [withFiles(ada, `${ADA}.password`, 'ada.totp'), grace] })
  t.strictSame(
    await apply(api.database, fromFiles),
    [`~ user ${ADA}: totp_secret`],
    'the password is that of the hash before',
  )
  t.strictSame(await apply(api.database, fromFiles), [])
  t.match(await api.call('GET', '/1.0/user'), { body: { '2fa': { enabled: true } } })
  const other = withFiles(ada, 'other.password', 'ada.totp')
  t.strictSame(await apply(api.database, aRegion({ users: [other, grace] })), [`~ user ${ADA}: password_hash`])
  t.strictSame(await apply(api.database, aRegion({ users: [other, grace] })), [])
  const { password_hash: hash } = await rowOf(db, 'users', ADA)
  t.match(hash, /^\$scrypt\$ln=15,r=8,p=3\$/)
  const { id, name, email_address, ssh_key } = ada
  const withoutAny = { id, name, email_address, ssh_key: ssh_key! }
  t.strictSame(
    await apply(api.database, aRegion({ users: [withoutAny, grace] })),
    [`~ user ${ADA}: password_hash, totp_secret`],
    'without them the user cannot sign in',
  )
  t.strictSame(await db.selectFrom('users').select(['password_hash', 'totp_secret']).where('id', '=', ADA).execute(), [
    { password_hash: null, totp_secret: null },
  ])
  t.strictSame(await apply(api.database, aRegion()), [`~ user ${ADA}: password_hash`])
})

t.test('another password or TOTP secret ends sign-ins; only another secret forgets which code was used', async (t) => {
  const [ada, grace] = aRegion().users as [RegionFile['users'][number], RegionFile['users'][number]]
  const tokens = { ada: await api.userToken(ADA), grace: await api.userToken(GRACE) }
  const isValid = async (token: string) => (await api.callWith(token, 'GET', '/1.0/user')).status === 200
  await apply(api.database, aRegion({ users: [{ ...ada, name: 'Augusta' }, grace] }))
  t.strictSame([await isValid(tokens.ada), await isValid(tokens.grace)], [true, true])
  for (const [change, totp_last_step] of [
    [{ totp_secret_file: 'ada.totp' }, null],
    [{ password_hash: grace.password_hash! }, 7],
  ] as const) {
    const token = await api.userToken(ADA)
    await setRow(db, 'users', ADA, { totp_last_step: 7 })
    await apply(api.database, aRegion({ users: [{ ...ada, ...change }, grace] }))
    await until(async () => !(await isValid(token)), 'the token to end', 5000)
    t.ok(await isValid(tokens.grace))
    t.strictSame(await db.selectFrom('users').select('totp_last_step').where('id', '=', ADA).execute(), [
      { totp_last_step },
    ])
    await apply(api.database, aRegion())
  }
})

t.test('applications come from the file, and are removed with the tokens of their users', async (t) => {
  const application = { id: 'app-file1', account: ONE, name: 'Dashboard', secret_file: 'app-file1.secret' }
  t.strictSame(await apply(api.database, aRegion({ applications: [application] })), ['+ application app-file1'])
  t.strictSame(await apply(api.database, aRegion({ applications: [application] })), [])
  t.strictSame(
    await apply(api.database, aRegion({ applications: [{ ...application, secret_file: 'another.secret' }] })),
    ['~ application app-file1: secret'],
  )
  const { id } = await db
    .insertInto('token_families')
    .values({ application_id: 'app-file1', user_id: ADA, scopes: [] })
    .returning('id')
    .executeTakeFirstOrThrow()
  await db.deleteFrom('applications').where('id', '!=', 'app-file1').execute() // that of userToken
  t.strictSame(await apply(api.database, aRegion(), { applications: ['app-file1'] }), ['- application app-file1'])
  t.strictSame(await db.selectFrom('token_families').select('id').where('id', '=', id).execute(), [])
})

t.test('a secret that was reset stays, until the file has another one or another account', async (t) => {
  const application = { id: 'app-file1', account: ONE, name: 'Dashboard', secret_file: 'app-file1.secret' }
  const {
    api_clients: [client, ...others],
  } = aRegion()
  const regionWith = (table: 'api_clients' | 'applications', change: object) =>
    table === 'applications'
      ? aRegion({ applications: [{ ...application, ...change }] })
      : aRegion({ api_clients: [{ ...client!, ...change }, ...others], applications: [application] })
  await apply(api.database, regionWith('applications', {}))
  for (const [table, id, noun] of [
    ['api_clients', client!.id, 'api client'],
    ['applications', application.id, 'application'],
  ] as const) {
    const secret = async () => (await rowOf(db, table, id)).secret_sha256!.toString()
    const reset = () => setRow(db, table, id, { secret_sha256: Buffer.from('reset') })
    await reset()
    t.strictSame(await apply(api.database, regionWith(table, {})), [], noun)
    t.equal(await secret(), 'reset', noun)
    for (const [change, line] of [
      [{ secret_file: 'another.secret' }, 'secret'],
      [{ account: TWO }, `account_id ${ONE} -> ${TWO}, secret`],
    ] as const) {
      t.strictSame(await apply(api.database, regionWith(table, change)), [`~ ${noun} ${id}: ${line}`])
      t.not(await secret(), 'reset', `${noun}: ${line}`)
      await apply(api.database, regionWith(table, {}))
      await reset()
    }
    await setRow(db, table, id, { secret_file_sha256: null })
    t.strictSame(
      await apply(api.database, regionWith(table, {})),
      [`~ ${noun} ${id}: secret`],
      'a file with the present secret again is named as a change',
    )
  }
  const former = async () => (await rowOf(db, 'api_clients', client!.id)).former_secret_sha256?.toString()
  const kept = { former_secret_sha256: Buffer.from('former'), former_secret_until: new Date(Date.now() + 3_600_000) }
  await setRow(db, 'api_clients', client!.id, kept)
  t.strictSame(await apply(api.database, regionWith('api_clients', {})), [])
  t.equal(await former(), 'former', 'so does the one that a reset has kept')
  await apply(api.database, regionWith('api_clients', { secret_file: 'another.secret' }))
  t.equal(await former(), undefined)
  await apply(api.database, aRegion(), { applications: ['app-file1'] })
})

t.test('the tokens of an API client that moves to another account end in the old one', async (t) => {
  const [first, ...others] = aRegion().api_clients
  const client = { id: 'cli-move1', name: '', secret_file: 'cli-move1.secret' }
  const regionWith = (change: object) =>
    aRegion({ api_clients: [first!, ...others, { ...client, account: ONE, ...change }] })
  await apply(api.database, regionWith({}))
  const old = await api.token(client.id)
  t.equal((await api.callWith(old, 'GET', '/1.0/account')).status, 200)
  await apply(api.database, regionWith({ account: TWO }))
  t.equal((await api.callWith(old, 'POST', '/1.0/cloud_ips')).status, 401, 'a change checks it again')
  await until(async () => (await api.callWith(old, 'GET', '/1.0/account')).status === 401, 'the token to end', 5000)
  t.match(await api.callWith(await api.token(client.id), 'GET', '/1.0/account'), { status: 200, body: { id: TWO } })
  const { secret_file: _file, ...without } = client
  await apply(api.database, aRegion({ api_clients: [first!, ...others, { ...without, account: ONE }] }))
  await t.rejects(api.token(client.id), /invalid_client/)
  await apply(api.database, aRegion(), { api_clients: [client.id] })
})

t.test('clients and applications that were made with the API are removed with their account', async (t) => {
  const { accounts } = aRegion()
  const more = { ...accounts[1]!, id: 'acc-more4', collaborators: [], status: 'closed' as const }
  await apply(api.database, aRegion({ accounts: [...accounts, more] }))
  const made = { account_id: 'acc-more4', name: '', description: '', secret_sha256: null }
  await db
    .insertInto('api_clients')
    .values([
      { ...made, id: 'cli-api01', permissions_group: 'full', revoked_at: null },
      { ...made, id: 'cli-api02', permissions_group: 'full', revoked_at: new Date() },
    ])
    .execute()
  await db
    .insertInto('applications')
    .values({ ...made, id: 'app-api01' })
    .execute()
  t.strictSame(await apply(api.database, aRegion(), { accounts: ['acc-more4'] }), ['- account acc-more4'])
})

t.test('a full pool that is widened gives the addresses that nobody has', async (t) => {
  const narrow = {
    mac: ['02:24:19:00:00:04/46'],
    private_ipv4: ['10.9.0.4/30'],
    public_ipv4: ['203.0.113.4/30'],
    public_ipv6: ['2001:db8:1::4/126'],
    ipv6: { '10.9.0.4/30': 'fd00:0:0:8::/61' },
  }
  const wide = {
    mac: ['02:24:19:00:00:00/45'],
    private_ipv4: ['10.9.0.0/29'],
    public_ipv4: ['203.0.113.0/29'],
    public_ipv6: ['2001:db8:1::/125'],
    ipv6: { '10.9.0.0/29': 'fd00:0:0:8::/61' },
  }
  const accounts = aRegion().accounts.map((account) => ({ ...account, cloud_ips_limit: 9 }))
  const { call, database } = await anApi(t, { region: aRegion({ accounts, address_pools: narrow }) })
  const create = async () => [
    (await call('POST', '/1.0/servers', { image: 'img-deb12' })).status,
    (await call('POST', '/1.0/cloud_ips')).status,
  ]
  t.strictSame(
    [await create(), await create(), await create()],
    [
      [202, 201],
      [202, 201],
      [503, 503],
    ],
  )
  t.strictSame(
    await apply(database, aRegion({ accounts, address_pools: wide })),
    POOL_KINDS.map((kind) => `+ address pool ${kind} ${wide[kind][0]!}`),
  )
  t.strictSame(
    [await create(), await create(), await create(), await create(), await create()],
    [
      [202, 201],
      [202, 201],
      [202, 201],
      [202, 201],
      [503, 503],
    ],
  )
  const rows = await database.db.selectFrom('interfaces').select(['ipv4_address', 'ipv6_prefix']).execute()
  t.strictSame(
    new Map(rows.map((row) => [row.ipv4_address, row.ipv6_prefix])),
    new Map([1, 2, 3, 4, 5, 6].map((n) => [`10.9.0.${n}`, `fd00:0:0:${(8 + n).toString(16)}::/64`])),
  )
  await t.rejects(
    apply(
      database,
      aRegion({
        accounts,
        address_pools: { ...wide, private_ipv4: ['10.9.0.0/28'], ipv6: { '10.9.0.0/28': 'fd00::/60' } },
      }),
    ),
    { message: 'the IPv6 networks of the database: fd00:0:0:8::/61 and fd00::/60 overlap. Nothing was changed' },
    'the database still has the narrower ranges',
  )
})

t.test('servers have IPv6 addresses once their range has a network, and it stays while they exist', async (t) => {
  const { call, database, startPublisher, drained } = await anApi(t)
  const { address_pools } = aRegion()
  const { ipv6 } = (parse(executed('docs/region-file.md', 'ipv6')) as Pick<RegionFile, 'address_pools'>).address_pools
  const withIpv6 = (networks: Record<string, string> | undefined) =>
    apply(database, aRegion({ address_pools: { ...address_pools, ...(networks && { ipv6: networks }) } }))
  const create = async () => (await call('POST', '/1.0/servers', { image: 'img-deb12' })).body as Server
  const read = async (id: string) => (await call('GET', `/1.0/servers/${id}`)).body as Server
  const { id } = await create()
  const without = await read(id)
  t.notMatch(JSON.stringify(without), /"ipv6_/, 'Libcloud would list a null as a public address')
  const [before] = await composeMany(database.db, [id])

  t.strictSame(await withIpv6(ipv6), [
    '~ address pool private_ipv4 10.240.0.0/16: ipv6_network null -> 2001:db8:100::/48',
    '+ IPv6 addresses of 1 servers',
  ])
  t.strictSame(await withIpv6(ipv6), [])
  const address = '2001:db8:100:1:24:19ff:fe00:0'
  t.match(await read(id), {
    ipv6_address: address,
    ipv6_hostname: `ipv6.${id}.gb1.example.com`,
    interfaces: [{ ipv6_address: address }],
  })
  t.match((await call('GET', `/1.0/interfaces/${without.interfaces[0].id}`)).body, { ipv6_address: address })
  const [after] = await composeMany(database.db, [id])
  t.equal(after!.revision, before!.revision + 1)
  t.match(after!.record.interfaces, [{ ipv6Addresses: [address], ipv6Prefixes: ['2001:db8:100:1::/64'] }])

  const second = await create()
  t.equal(second.ipv6_address, '2001:db8:100:2:24:19ff:fe00:1')
  for (const networks of [
    undefined,
    { '10.240.0.0/16': '2001:db8:200::/48' },
    { '10.240.0.0/16': '2001:db8:100::/64' },
  ])
    await t.rejects(withIpv6(networks), {
      message:
        `${id} (10.240.0.1, and 1 more) has the IPv6 address ${address} of the network before: give its range the ` +
        'same network again (address_pools.ipv6), or delete the server first. Nothing was changed',
    })
  t.equal((await read(id)).ipv6_address, address)
  for (const one of [id, second.id]) await call('DELETE', `/1.0/servers/${one}`)
  await startPublisher()
  await drained()
  t.equal((await create()).ipv6_address, '2001:db8:100:3:24:19ff:fe00:2', 'addresses that nobody has had, first')
})

t.test('the /64 of a server does not become that of all servers, though its address would stay', async (t) => {
  const range = '10.9.0.0-10.9.0.7'
  const withNetwork = (network: string) =>
    aRegion({ address_pools: { ...aRegion().address_pools, private_ipv4: [range], ipv6: { [range]: network } } })
  const { call, database } = await anApi(t, { region: withNetwork('fd00::/61') })
  t.match((await call('POST', '/1.0/servers', { image: 'img-deb12' })).body, { ipv6_address: 'fd00::24:19ff:fe00:0' })
  await t.rejects(apply(database, withNetwork('fd00::/64')), { message: /fd00::24:19ff:fe00:0 of the network before/ })
})

interface Server {
  readonly id: string
  readonly ipv6_address?: string
  readonly interfaces: readonly [{ readonly id: string }]
}

/** The id that the sequence gives after another one. */
function nextAfter(id: string): string {
  for (let number = 1; number < 100; number++) if (formatId('grp', number) === id) return formatId('grp', number + 1)
  throw new Error(`${id} is not an early id`)
}

const databaseServer = {
  id: 'dbs-one01',
  account: ONE,
  name: 'orders',
  database_engine: 'mysql',
  database_version: '8.0',
  database_server_type: 'dbt-small',
  zone: 'gb1-a',
}
const types = { database_server_types: [{ id: 'dbt-small', name: 'Small', ram: 2048, disk_size: 81_920 }] }

t.test('a row keeps every field that a request can change, whatever the file says', async (t) => {
  const {
    users: [ada, grace],
    accounts: [one, publisher],
    images: [debian, own, old],
    api_clients: [first, second, storage],
  } = aRegion()
  const two = { ...publisher!, publish_images: true }
  const full = {
    ...types,
    accounts: [one!, two],
    database_servers: [databaseServer],
    applications: [{ id: 'app-file1', account: ONE, name: 'Dashboard' }],
  }
  const { call, callWith, userToken, server, database } = await anApi(t, { region: aRegion(full) })
  const user = await userToken(ADA)
  const { paths } = await readDocument<{
    paths: Record<string, { put: { requestBody: { content: Record<string, { schema: { properties: object } }> } } }>
  }>(server)
  const changes: readonly (readonly [path: string, id: string, body: object, refused: readonly string[]])[] = [
    ['users', ADA, { name: 'Augusta', ssh_key: GRACES_KEY, messaging_pref: false }, ['email_address', 'password']],
    [
      'accounts',
      ONE,
      {
        name: 'Other',
        address_1: '1 Park Row',
        address_2: 'Second floor',
        city: 'Leeds',
        county: 'Yorkshire',
        postcode: 'LS1 5HD',
        country_code: 'DE',
        telephone_number: '+491701234567',
        vat_registration_number: 'DE136695976',
      },
      [],
    ],
    [
      'images',
      own!.id,
      {
        name: 'golden',
        username: 'admin',
        description: 'ours',
        arch: 'x86_64',
        status: 'deprecated',
        public: true,
        compatibility_mode: true,
        min_ram: 256,
      },
      [],
    ],
    ['applications', 'app-file1', { name: 'Tablet', description: 'An app' }, []],
    [
      'database_servers',
      databaseServer.id,
      { name: 'stock', description: 'of Leeds' },
      ['allow_access', 'maintenance_weekday', 'maintenance_hour', 'snapshots_schedule'],
    ],
    // last: the requests are its own
    [
      'api_clients',
      first!.id,
      {
        name: 'Other',
        description: 'Makes nothing',
        permissions_group: 'storage',
        expires_at: '2126-11-20T15:04:05Z',
        allow_access: ['127.0.0.0/8'],
      },
      ['read_only', 'trusted_servers'], // it could send no further request; a group, which the file does not have
    ],
  ]
  for (const [path, id, body, refused] of changes) {
    const known = Object.keys(
      paths[`/1.0/${path}/{id}`]!.put.requestBody.content['application/json']!.schema.properties,
    )
    t.strictSame(
      known.filter((field) => !refused.includes(field)).sort(),
      Object.keys(body).sort(),
      `every field that a PUT of ${path} can change is changed here`,
    )
    const { status, body: answer } = await (path === 'users'
      ? callWith(user, 'PUT', `/1.0/users/${id}`, body)
      : call('PUT', `/1.0/${path}/${id}`, body, path === 'images' ? TWO : ONE))
    t.match([status, answer], [200, body], path)
  }
  t.match(await call('PUT', `/1.0/images/${own!.id}/lock_resource`, undefined, TWO), { status: 200 })
  t.strictSame(await apply(database, aRegion(full)), [])
  const other = {
    ...types,
    database_servers: [{ ...databaseServer, name: 'other', description: 'other' }],
    applications: [{ id: 'app-file1', account: ONE, name: 'Other', description: 'other' }],
    users: [{ ...ada!, name: 'Other', ssh_key: '', messaging_pref: true }, grace!],
    images: [
      debian!,
      {
        ...own!,
        name: 'Other',
        username: 'x',
        status: 'available',
        description: 'x',
        arch: 'i686' as const,
        public: false,
        source: own!.name,
        min_ram: 1,
      },
      old!,
    ],
    accounts: [
      {
        ...one!,
        name: 'x',
        address_1: 'x',
        address_2: 'x',
        city: 'x',
        county: 'x',
        postcode: 'x',
        country_code: 'FR',
        vat_registration_number: 'FR40303265045',
        telephone_number: '+33123456789',
      },
      two,
    ],
    api_clients: [{ ...first!, name: 'x', description: 'x', permissions_group: 'full' as const }, second!, storage!],
  }
  t.strictSame(await apply(database, aRegion(other)), [], 'nor does a new value of the file')
})

t.test('what no request can change comes back to the value of the file', async (t) => {
  const full = aRegion({ ...types, database_servers: [databaseServer] })
  await apply(api.database, full)
  await setRow(db, 'users', ADA, { email_address: 'augusta@example.com', email_verified: false })
  await setRow(db, 'accounts', ONE, { status: 'suspended', ram_limit: 1, telephone_verified: false })
  await setRow(db, 'images', 'img-deb12', {
    name: 'x',
    username: 'x',
    status: 'deleted',
    locked: true,
    public: false,
    description: 'x',
  })
  await setRow(db, 'database_servers', databaseServer.id, { locked: true, status: 'failed', maintenance_hour: 1 })
  t.strictSame(await apply(api.database, full), [
    `~ user ${ADA}: email_verified false -> true, email_address augusta@example.com -> ada@example.com`,
    `~ account ${ONE}: status suspended -> active, telephone_verified false -> true, ram_limit 1 -> 16384`,
    '~ image img-deb12: username x -> debian, status deleted -> available, locked true -> false, description x -> , public false -> true, name x -> Debian 12',
    `~ database server ${databaseServer.id}: status failed -> active, locked true -> false, maintenance_hour 1 -> 6`,
  ])
  await apply(api.database, aRegion(), { database_servers: [databaseServer.id], database_server_types: ['dbt-small'] })
})

t.test('what a request has deleted stays deleted', async (t) => {
  const { database, call } = await anApi(t)
  t.match(await call('DELETE', '/1.0/images/img-two02', undefined, TWO), { status: 202, body: { status: 'deleted' } })
  t.match(await call('DELETE', `/1.0/api_clients/${STORAGE_CLIENT}`), { status: 200 })
  t.strictSame(await apply(database, aRegion()), [])
  t.match(await call('GET', '/1.0/images/img-two02', undefined, TWO), { status: 404 })
  t.match(await call('GET', `/1.0/api_clients/${STORAGE_CLIENT}`), { body: { revoked_at: /^2/ } })
})

t.test('a user or an account who has ended or rejected a collaboration of the file is not brought back', async (t) => {
  const {
    accounts: [one, two],
  } = withMary()
  const region = withMary({
    accounts: [
      { ...one!, collaborators: [GRACE] },
      { ...two!, collaborators: [ADA] },
    ],
  })
  const { database, call, callWith, userToken } = await anApi(t, { region })
  const collaborations = async () =>
    (
      await database.db
        .selectFrom('collaborations')
        .select(['account_id', 'email', 'status'])
        .orderBy('created_at')
        .orderBy('id')
        .execute()
    ).map((row) => Object.values(row).join(' '))
  const idOf = async (account: string) =>
    (
      await database.db
        .selectFrom('collaborations')
        .select('id')
        .where('account_id', '=', account)
        .orderBy('created_at', 'desc')
        .executeTakeFirstOrThrow()
    ).id
  t.match(await call('DELETE', `/1.0/collaborations/${await idOf(ONE)}`), { body: { status: 'ended' } })
  t.match(await callWith(await userToken(ADA), 'DELETE', `/1.0/user/collaborations/${await idOf(TWO)}`), {
    body: { status: 'ended' },
  })
  await call('POST', '/1.0/collaborations', { email: 'MARY@example.com', role: 'admin' })
  t.match(await callWith(await userToken(MARY), 'POST', `/1.0/user/collaborations/${await idOf(ONE)}/reject`), {
    body: { status: 'rejected' },
  })
  const all = { ...region, accounts: [{ ...one!, collaborators: [GRACE, MARY] }, region.accounts[1]!] }
  const ended = [`${ONE} grace@example.com ended`, `${TWO} ada@example.com ended`, `${ONE} MARY@example.com rejected`]
  t.strictSame([await apply(database, all), (await collaborations()).sort()], [[], ended.toSorted()])
  await call('POST', '/1.0/collaborations', { email: 'grace@example.com', role: 'admin' })
  t.strictSame(
    [await apply(database, all), (await collaborations()).sort()],
    [[], [...ended, `${ONE} grace@example.com pending`].sort()],
    'a user who is invited again answers the invitation',
  )
})

t.test('a deprecated server type makes no server, and the default is the smallest that is available', async (t) => {
  const {
    server_types: [small, large],
  } = aRegion()
  const typesOf = async (...states: ('experimental' | 'available' | 'deprecated')[]) =>
    apply(
      api.database,
      aRegion({
        server_types: [
          { ...small!, status: states[0]! },
          { ...large!, status: states[1]! },
        ],
      }),
    )
  const create = async (server_type?: string) =>
    api.call('POST', '/1.0/servers', { image: 'img-deb12', ...(server_type !== undefined && { server_type }) })
  await typesOf('deprecated', 'available')
  for (const name of [small!.id, small!.handle])
    t.match(await create(name), {
      status: 422,
      body: { errors: [`server_type: ${name} does not exist, or is deprecated`] },
    })
  t.match(await create(), { status: 202, body: { server_type: { id: large!.id } } })
  t.match(
    await api.call('GET', `/1.0/server_types/${small!.id}`),
    { status: 200, body: { status: 'deprecated' } },
    'it is still listed, for the servers that have it',
  )
  await typesOf('experimental', 'deprecated')
  t.match(await create(small!.id), { status: 202, body: { server_type: { id: small!.id, status: 'experimental' } } })
  t.match(await create(), {
    status: 422,
    body: { errors: ['server_type: name one, because the region has none that is available'] },
  })
  await apply(api.database, aRegion())
})

t.test('responses have a new domain of the region within a second or with the next request after that', async (t) => {
  const { database, call } = await anApi(t)
  const {
    body: { id },
  } = (await call('POST', '/1.0/servers', { image: 'img-deb12', cloud_ip: true })) as {
    readonly body: { readonly id: string }
  }
  await apply(database, aRegion({ domain: 'gb2.example.com' }))
  const server = async () =>
    (await call('GET', `/1.0/servers/${id}`)).body as {
      readonly fqdn: string
      readonly cloud_ips: readonly { readonly fqdn: string }[]
    }
  await until(async () => (await server()).fqdn === `${id}.gb2.example.com`, 'the new domain', 5000)
  t.match(await server(), {
    cloud_ips: [{ fqdn: /^cip-.*\.gb2\.example\.com$/ }],
    server_groups: [{ fqdn: /\.gb2\.example\.com$/ }],
  })
  t.match(await call('POST', '/1.0/cloud_ips'), { body: { fqdn: /\.gb2\.example\.com$/ } })
})
