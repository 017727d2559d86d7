/**
 * Accounts and users, and what the region offers them. The forms of accounts, users, zones, server types, images and the
 * resources of other documents, compared whole; changes of an account and of a profile, and who may make them.
 */
import { sql } from 'kysely'
import t from 'tap'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import type { Tx } from '../../src/imds-api/database/transaction.ts'
import { ADA, ADAS_KEY, CLIENT_OF, GRACE, GRACES_KEY, MARY, ONE, TWO, withMary } from '../support/fixtures/region.ts'
import {
  collectedAccount,
  fullAccount,
  nestedAccount,
  nestedImage,
  nestedServerGroup,
  nestedUser,
  serverType,
  TIME,
  zone,
} from '../support/fixtures/representations.ts'
import { missing } from '../support/programs/api-client.ts'
import { anApi, rowOf, setRow } from '../support/programs/api.ts'

type Body = Record<string, unknown>

const api = await anApi(t, { region: withMary() })
const { db } = api.database
const [ada, grace, mary, client, other] = [
  await api.userToken(ADA),
  await api.userToken(GRACE),
  await api.userToken(MARY),
  await api.token(CLIENT_OF[ONE]),
  await api.token(CLIENT_OF[TWO]),
]
const put = async (body: unknown, token = client, id: string = ONE) => {
  const { status, body: answer } = await api.callWith(token, 'PUT', `/1.0/accounts/${id}`, body)
  return { status, body: answer as Body }
}
const read = async (id: typeof ONE | typeof TWO = ONE) =>
  (await api.call('GET', `/1.0/accounts/${id}`, undefined, id)).body as Body

const get = async (url: string, account?: typeof ONE | typeof TWO) => {
  const { status, body } = await api.call('GET', url, undefined, account)
  return { status, body: body as Record<string, never> & Record<string, never>[] }
}

t.test('zones: the list by handle, members by id and by handle', async (t) => {
  const [a, b] = [zone('zon-aaaa1'), zone('zon-bbbb2')]
  t.strictSame(await get('/1.0/zones'), { status: 200, body: [a, b] })
  for (const name of ['zon-bbbb2', 'gb1-b']) t.strictSame(await get(`/1.0/zones/${name}`), { status: 200, body: b })
  t.strictSame(await get('/1.0/zones/zon-zzzzz'), missing('the zone zon-zzzzz'))
})

t.test('server types: the list by RAM, members by id and by handle', async (t) => {
  const [small, large] = [serverType('typ-small'), serverType('typ-large')]
  t.strictSame(await get('/1.0/server_types'), { status: 200, body: [small, large] })
  for (const name of ['typ-large', '4gb.ssd'])
    t.strictSame(await get(`/1.0/server_types/${name}`), { status: 200, body: large })
  t.strictSame(await get('/1.0/server_types/8gb'), missing('the server type 8gb'))
})

t.test('images: public ones and those of the account, members by id and by handle', async (t) => {
  const { body: list } = await get('/1.0/images', TWO)
  const created = String(list[0]!['created_at'])
  t.match(created, TIME)
  const image = (id: Parameters<typeof nestedImage>[0], more: object = {}) => ({
    ...nestedImage(id, created),
    source_type: 'upload',
    compatibility_mode: false,
    min_ram: null,
    disk_size: 2048,
    virtual_size: 10_240,
    licence_name: null,
    ancestor: null,
    ...more,
  })
  const own = image('img-two02', { min_ram: 512, disk_size: 1024, virtual_size: 2048, licence_name: 'GPL' })
  t.strictSame(list, [image('img-deb12'), image('img-old03'), own])
  t.strictSame(await get('/1.0/images'), { status: 200, body: [image('img-deb12'), image('img-old03')] })
  for (const name of ['img-deb12', 'debian-12'])
    t.strictSame(await get(`/1.0/images/${name}`), { status: 200, body: image('img-deb12') })
  t.strictSame(await get('/1.0/images/img-two02', TWO), { status: 200, body: own })
  t.strictSame(await get('/1.0/images/img-two02'), missing('the image img-two02'))
})

t.test('accounts: collected in the list, full as a member and as the account of the token', async (t) => {
  for (const id of [ONE, TWO] as const) {
    const { body: list } = await get('/1.0/accounts', id)
    const group = list[0]!['server_groups']![0] as { id: string; created_at: string }
    t.match(group, { id: /^grp-[0-9a-z]{5}$/, created_at: TIME })
    const { id: groupId, created_at } = group
    const collected = collectedAccount(id, {
      server_groups: [
        nestedServerGroup(groupId, {
          name: 'default',
          description: 'All servers that name no group',
          created_at,
          default: true,
        }),
      ],
      images: id === ONE ? [] : [nestedImage('img-two02', created_at)],
    })
    t.strictSame(list, [collected])
    const full = { status: 200, body: { ...collected, ...fullAccount(id, created_at) } }
    t.strictSame(await get(`/1.0/accounts/${id}`, id), full)
    t.strictSame(await get('/1.0/account', id), full)
  }
  t.strictSame(await get(`/1.0/accounts/${TWO}`), missing(`the account ${TWO}`))
})

t.test('users: those of the account, and the owner as the user of the token', async (t) => {
  const { body: list } = await get('/1.0/users', TWO)
  const created_at = String(list[0]!['created_at'])
  t.match(created_at, TIME)
  const ada = {
    ...nestedUser(ADA),
    email_verified: true,
    ssh_key: ADAS_KEY,
    messaging_pref: true,
    created_at,
    accounts: [nestedAccount(ONE)],
    default_account: nestedAccount(ONE),
  }
  const grace = {
    ...nestedUser(GRACE),
    email_verified: true,
    ssh_key: GRACES_KEY,
    messaging_pref: false,
    created_at,
    accounts: [nestedAccount(TWO)],
    default_account: nestedAccount(TWO),
  }
  // her own account is none of its users' business
  const adaInTwo = { ...ada, accounts: [nestedAccount(TWO)], default_account: null }
  t.strictSame(
    list,
    [adaInTwo, grace].map((user) => ({ ...user, default_account: null })),
  )
  t.strictSame(await get('/1.0/users'), { status: 200, body: [{ ...ada, default_account: null }] })
  t.strictSame(await get(`/1.0/users/${ADA}`, TWO), { status: 200, body: adaInTwo })
  t.strictSame(await get('/1.0/user'), { status: 200, body: ada })
  t.strictSame(await get('/1.0/user', TWO), { status: 200, body: grace })
  t.strictSame(await get(`/1.0/users/${GRACE}`), missing(`the user ${GRACE}`))
})

t.test('an ssh_key that is not set is empty text, and 2fa shows that a TOTP secret is set', async (t) => {
  const setGrace = (set: { readonly ssh_key: string | null; readonly totp_secret: string | null }) =>
    setRow(db, 'users', GRACE, set)
  await setGrace({ ssh_key: null, totp_secret: 'JBSWY3DPEHPK3PXP' })
  t.teardown(() => setGrace({ ssh_key: GRACES_KEY, totp_secret: null }))
  const { body } = await get('/1.0/user', TWO)
  t.match(body, { ssh_key: '', '2fa': { enabled: true } })
  t.notMatch(JSON.stringify(body), /JBSWY/)
})

t.test('resources of other documents: an empty list, no member, and no changes', async (t) => {
  for (const collection of ['load_balancers', 'database_snapshots', 'firewall_policies', 'firewall_rules', 'volumes']) {
    t.strictSame(await get(`/1.0/${collection}`), { status: 200, body: [] }, collection)
    t.strictSame(await get(`/1.0/${collection}/xyz-aaaaa`), missing('xyz-aaaaa'), collection)
    const refused = {
      status: 501,
      body: {
        error_name: 'not_implemented',
        errors: [`changes of ${collection.replaceAll('_', ' ')} are not implemented`],
      },
    }
    for (const [method, path] of [
      ['POST', ''],
      ['PUT', '/xyz-aaaaa'],
      ['DELETE', '/xyz-aaaaa'],
      ['POST', '/xyz-aaaaa/reset'],
    ] as const) {
      t.match(await api.call(method, `/1.0/${collection}${path}`, {}), refused, `${method} ${collection}${path}`)
    }
  }
})

t.test('an account that is deleted while it is read is not shown, and not a 500', async (t) => {
  const add = () =>
    api.database.pool.query(
      `insert into accounts select (jsonb_populate_record(accounts, '{"id": "acc-new03", "status": "closed"}')).* from accounts where id = $1`,
      [ONE],
    )
  await add()
  const remove = async (tx: Tx) => {
    await sql`lock table server_types`.execute(tx) // the second query of the request waits for it
    await tx.deleteFrom('accounts').where('id', '=', 'acc-new03').execute()
  }
  const list = await api.during(remove, () => api.callWith(ada, 'GET', '/1.0/accounts'))
  t.match(list, { status: 200 })
  t.strictSame(
    (list.body as { id: string }[]).map(({ id }) => id),
    [ONE, TWO],
  )
  await add()
  t.match(await api.during(remove, () => api.callWith(ada, 'GET', '/1.0/accounts/acc-new03')), { status: 404 })
})

t.test('PUT changes each field of the document, and answers the full form', async (t) => {
  const before = await read()
  const change = {
    name: 'Difference Engines',
    address_1: '1 Dorset Street',
    address_2: 'Marylebone',
    city: 'Paris',
    county: 'Île-de-France',
    postcode: '75001',
    country_code: 'FR',
    vat_registration_number: 'FR40303265045',
    telephone_number: '+33142685300',
  }
  const expected = { ...before, ...change, country_name: 'France' }
  t.strictSame(await put(change), { status: 200, body: expected })
  t.strictSame(await read(), expected)
  for (const [field, value] of Object.entries(change)) {
    await put({ [field]: before[field] })
    t.strictSame(
      await read(),
      {
        ...expected,
        [field]: before[field],
        ...(field === 'country_code' && { country_name: before['country_name'] }),
      },
      `${field} alone`,
    )
    await put({ [field]: value })
  }
  t.strictSame((await put(before)).body, before, 'what GET returned can be sent back')
})

t.test('another telephone number leaves the verified one as it is', async (t) => {
  const { verified_telephone, telephone_verified, verified_at } = await read()
  t.match((await put({ telephone_number: '+442079460999' })).body, {
    telephone_number: '+442079460999',
    verified_telephone,
    telephone_verified,
    verified_at,
  })
})

t.test('a body without parameters changes nothing, and unknown ones and those of others are ignored', async (t) => {
  const before = await read()
  for (const body of [
    undefined,
    {},
    { colour: 'red' },
    {
      status: 'closed',
      ram_limit: 1,
      id: TWO,
      owner: GRACE,
      telephone_verified: false,
      valid_credit_card: false,
      library_ftp_password: 'x',
      verified_telephone: '+12025550100',
    },
  ]) {
    t.strictSame(await put(body), { status: 200, body: before })
  }
})

t.test('an EU VAT number is stored without spaces; null and an empty text clear it', async (t) => {
  for (const none of [null, '']) {
    t.equal((await put({ vat_registration_number: 'de 136 695.976' })).body['vat_registration_number'], 'DE136695976')
    t.equal((await put({ vat_registration_number: none })).body['vat_registration_number'], null)
  }
})

t.test('the owner, a collaborator and an API client may change the account that they name, and no other', async (t) => {
  for (const token of [grace, ada, other]) {
    t.match(await put({ name: 'Compilers' }, token, TWO), { status: 200, body: { id: TWO, name: 'Compilers' } })
    t.equal((await api.callWith(token, 'PUT', `/1.0/account?account_id=${TWO}`, { name: 'Compilers' })).status, 200)
  }
  for (const token of [grace, other])
    t.match(await put({ name: 'Mine' }, token), {
      status: 404,
      body: { errors: [`the account ${ONE} does not exist`] },
    })
  t.match(await put({}, ada, `${ONE}?account_id=${TWO}`), { status: 404 }, 'not the named one')
})

t.test('reset_ftp_password shows the new password once; the database has its digest', async (t) => {
  const hashOf = async () => (await rowOf(db, 'accounts', ONE)).library_ftp_password_hash
  t.equal(await hashOf(), null)
  const before = await read()
  const passwords = new Set<string>()
  for (const path of [`accounts/${ONE}/reset_ftp_password`, 'account/reset_ftp_password']) {
    const { status, body } = (await api.call('POST', `/1.0/${path}`)) as { status: number; body: Body }
    const password = String(body['library_ftp_password'])
    t.equal(status, 200)
    t.match(password, /^[A-Za-z0-9_-]{27}$/) // 160 bits
    passwords.add(password)
    t.strictSame(body, { ...before, library_ftp_password: password })
    t.equal(await hashOf(), digest(password).toString('hex'))
    t.strictSame(await read(), before)
    t.notMatch(JSON.stringify((await api.call('GET', '/1.0/accounts')).body), new RegExp(password))
  }
  t.equal(passwords.size, 2)
})

const NEW_KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5 ada@laptop'
const unchanged = { name: 'Ada Lovelace', email_address: 'ada@example.com', ssh_key: ADAS_KEY, messaging_pref: true }

t.beforeEach(async () => {
  await setRow(db, 'users', ADA, unchanged)
})

t.test('a user changes name, key and messaging_pref, by id and as /user, and clears the key', async (t) => {
  for (const path of [`users/${ADA}`, 'user', `users/${ADA}?account_id=${TWO}`]) {
    const change = { name: 'Augusta', ssh_key: NEW_KEY, messaging_pref: false }
    t.match(
      await api.callWith(ada, 'PUT', `/1.0/${path}`, change),
      { status: 200, body: { id: ADA, ...change, email_address: 'ada@example.com' } },
      path,
    )
    t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: change })
    t.match(await api.callWith(ada, 'PUT', `/1.0/${path}`, { ssh_key: '' }), {
      status: 200,
      body: { name: 'Augusta', ssh_key: '' },
    })
    t.match(await api.callWith(ada, 'PUT', `/1.0/${path}`, { name: 'Ada Lovelace', ssh_key: ADAS_KEY }), {
      status: 200,
      body: { name: 'Ada Lovelace', ssh_key: ADAS_KEY },
    })
    t.match(await api.callWith(ada, 'PUT', `/1.0/${path}`, { ssh_key: null }), { status: 200, body: { ssh_key: '' } })
  }
})

t.test("the clients' way works: all fields as they were, and a key file with its line break", async (t) => {
  const { email_address, name } = unchanged
  t.match(await api.callWith(ada, 'PUT', `/1.0/users/${ADA}`, { email_address, name, ssh_key: `${NEW_KEY}\n` }), {
    status: 200,
    body: { name, email_address, ssh_key: NEW_KEY },
  })
})

t.test('a user has several keys, one per line, and reads them as they are stored', async (t) => {
  const pasted = { ssh_key: `${NEW_KEY}\r\n\n${ADAS_KEY}\n` }
  const stored = { ssh_key: `${NEW_KEY}\n${ADAS_KEY}` }
  t.match(await api.callWith(ada, 'PUT', '/1.0/user', pasted), { status: 200, body: stored })
  t.match(await api.callWith(client, 'PUT', '/1.0/user', stored), { status: 200, body: stored }, 'resent as it is')
  t.match(
    await api.callWith(ada, 'PUT', '/1.0/user', { ssh_key: NEW_KEY }),
    { body: { ssh_key: NEW_KEY } },
    'one again',
  )
})

t.test('a user without an account reads and changes their own profile, and sees nobody else', async (t) => {
  t.match(await api.callWith(mary, 'PUT', `/1.0/users/${MARY}`, { name: 'Mary' }), {
    status: 200,
    body: { id: MARY, name: 'Mary', accounts: [], default_account: null },
  })
  for (const path of ['user', `users/${MARY}`])
    t.match(await api.callWith(mary, 'GET', `/1.0/${path}`), { status: 200, body: { name: 'Mary' } })
  for (const path of ['accounts', 'users']) t.strictSame((await api.callWith(mary, 'GET', `/1.0/${path}`)).body, [])
})

t.test('nobody else changes a profile: a request that would is refused', async (t) => {
  const lines = api.audit.length
  t.match(await api.callWith(client, 'PUT', `/1.0/users/${ADA}`, { ssh_key: NEW_KEY }), {
    status: 403,
    body: { error_name: 'forbidden', errors: [`only ${ADA} can change this profile, after signing in`] },
  })
  t.match(
    await api.callWith(client, 'PUT', '/1.0/user', { name: 'Eve' }),
    { status: 403 },
    "the owner of the client's account",
  )
  for (const name of ['Eve', unchanged.name])
    t.match(
      await api.callWith(grace, 'PUT', `/1.0/users/${ADA}`, { name }),
      { status: 403 },
      `${name} by another user of the account`,
    )
  t.match(
    await api.callWith(client, 'PUT', `/1.0/users/${GRACE}`, { name: 'Eve' }),
    { status: 404 },
    'a user of another account',
  )
  t.match(await api.callWith(grace, 'PUT', `/1.0/users/${MARY}`, {}), { status: 404 })
  t.match(
    await api.callWith(client, 'PUT', `/1.0/users/${ADA}`, { name: unchanged.name }),
    { status: 200, body: { id: ADA } },
    "fog's tests send the name as it is",
  )
  t.match(await api.callWith(client, 'PUT', '/1.0/user', unchanged), { status: 200, body: { id: ADA } })
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: unchanged })
  const said = api.audit.slice(lines).map(({ id, changed }) => ({ id, changed }))
  t.strictSame(said, Array(2).fill({ id: ADA, changed: false }), 'no audit line says that it was changed')
})

t.test('the audit line of a profile with its present values says that nothing changed', async (t) => {
  const lines = api.audit.length
  t.match(await api.callWith(ada, 'PUT', '/1.0/user', unchanged), { status: 200 })
  t.match(await api.callWith(ada, 'PUT', `/1.0/users/${ADA}`, {}), { status: 200 })
  t.match(await api.callWith(ada, 'PUT', '/1.0/user', { ssh_key: NEW_KEY }), { status: 200 })
  t.match(api.audit.slice(lines), [
    { id: ADA, changed: false },
    { id: ADA, changed: false },
    { user: ADA, route: '/1.0/user', id: ADA, set: ['ssh_key'], changed: undefined },
  ])
})

t.test('a new server has the keys that the users of its account have at that time', async (t) => {
  const create = async () =>
    ((await api.call('POST', '/1.0/servers', { image: 'img-deb12' }, TWO)).body as { id: string }).id
  const keysOf = async (id: string) =>
    (await db.selectFrom('server_keys').select('key').where('server_id', '=', id).orderBy('user_id').execute()).map(
      ({ key }) => key,
    )
  const servers = [await create()]
  for (const ssh_key of [NEW_KEY, '']) {
    t.equal((await api.callWith(ada, 'PUT', '/1.0/user', { ssh_key })).status, 200)
    servers.push(await create())
  }
  t.strictSame(await Promise.all(servers.map(keysOf)), [[ADAS_KEY, GRACES_KEY], [NEW_KEY, GRACES_KEY], [GRACES_KEY]])
})
