/**
 * Changes of an account: every field of the document, who may change it, and the password of the image library.
 * test/imds-api/catalog.test.ts has the forms.
 */
import { sql } from 'kysely'
import t from 'tap'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import type { Tx } from '../../src/imds-api/database/transaction.ts'
import { STORABLE_FAULT } from '../../src/imds-api/model/storable-text.ts'
import { ADA, CLIENT_OF, GRACE, ONE, STORAGE_CLIENT, TWO } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'

type Body = Record<string, unknown>

const api = await anApi(t)
const { db } = api.database
const [ada, grace, client, other] = [
  await api.userToken(ADA),
  await api.userToken(GRACE),
  await api.token(CLIENT_OF[ONE]),
  await api.token(CLIENT_OF[TWO]),
]
const put = async (body: unknown, token = client, id: string = ONE) => {
  const { status, body: answer } = await api.callWith(token, 'PUT', `/1.0/accounts/${id}`, body)
  return { status, body: answer as Body }
}
const read = async (id: typeof ONE | typeof TWO = ONE) =>
  (await api.call('GET', `/1.0/accounts/${id}`, undefined, id)).body as Body

t.test('an account that is deleted while it is read is not shown, and not a 500', async (t) => {
  await api.database.pool.query(
    `
      insert into accounts
      select (jsonb_populate_record(accounts, '{"id": "acc-new03"}')).*
      from accounts
      where id = $1`,
    [ONE],
  )
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
  await api.database.pool.query(
    `
      insert into accounts
      select (jsonb_populate_record(accounts, '{"id": "acc-new03"}')).*
      from accounts
      where id = $1`,
    [ONE],
  )
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

t.test('both forms have the links and the usage of servers, cloud IPs, server groups and API clients', async (t) => {
  const before = await read()
  const server = (await api.call('POST', '/1.0/servers', { image: 'img-deb12', server_type: 'typ-large' }))
    .body as Body & { server_groups: Body[] }
  const cloudIp = (await api.call('POST', '/1.0/cloud_ips', { name: 'www' })).body as Body
  const group = (await api.call('POST', '/1.0/server_groups', { name: 'web' })).body as Body
  const made = (await api.call('POST', '/1.0/api_clients', { name: 'x' })).body as Body
  const nested = (resource: Body, fields: readonly string[]) =>
    Object.fromEntries(['id', 'resource_type', 'url', ...fields].map((field) => [field, resource[field]]))
  const byId = (list: unknown, one: object) =>
    [...(list as Body[]), one as Body].sort((a, b) => (String(a['id']) < String(b['id']) ? -1 : 1))
  const expected = {
    servers_used: 1,
    ram_used: 4096,
    cloud_ips_used: 1,
    servers: [
      nested(server, ['name', 'status', 'locked', 'hostname', 'fqdn', 'created_at', 'started_at', 'deleted_at']),
    ],
    cloud_ips: [
      nested(cloudIp, ['name', 'public_ip', 'public_ipv4', 'public_ipv6', 'fqdn', 'status', 'reverse_dns', 'mode']),
    ],
    server_groups: byId(
      before['server_groups'],
      nested(group, ['name', 'description', 'created_at', 'default', 'fqdn']),
    ),
    clients: byId(before['clients'], nested(made, ['name', 'description', 'permissions_group', 'revoked_at'])),
  }
  t.strictSame(await read(), { ...before, ...expected })
  const [collected] = (await api.call('GET', '/1.0/accounts')).body as Body[]
  for (const [field, value] of Object.entries(expected))
    t.strictSame(collected![field], value, `${field} in the collected form`)
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

t.test('every wrong field is refused', async (t) => {
  const before = await read()
  const [text, country, vat, telephone, long, control] = [
    'must be a string',
    'must be a two-letter code of ISO 3166-1',
    'must be a valid EU VAT number, with the prefix of its country',
    'must be a telephone number of E.164, such as +442079460000',
    'must have at most 255 characters',
    'must be one line without control characters',
  ]
  const rows: readonly (readonly [string, readonly unknown[], string])[] = [
    ...['name', 'address_1', 'address_2', 'city', 'county', 'postcode'].flatMap(
      (field): [string, unknown[], string][] => [
        [field, [1, null, {}, [], true], text],
        [field, ['x'.repeat(256)], long],
        [field, ['a\nb', '\u{7f}'], control],
        [field, ['\0'], `${control} and ${STORABLE_FAULT}`],
      ],
    ),
    ['name', [''], 'must not be empty'],
    ['country_code', ['', 'EU', 'XK', 'ZZ'], country],
    ['country_code', ['gb', 'GBR', 'UK'], `${country} (did you mean GB?)`],
    ['country_code', [null, 1], text],
    ['vat_registration_number', ['DE136695977', 'GB980780684', '136695976', 'DE', 'nonsense', ' '], vat],
    [
      'telephone_number',
      ['', '02079460000', '+44 20 7946 0000', '+0442079460000', '+44', '+1234567890123456', '+44207946000x'],
      telephone,
    ],
    ['telephone_number', [null, 442079460000], text],
  ]
  for (const [field, values, fault] of rows) {
    for (const value of values) {
      t.strictSame(
        await put({ [field]: value }),
        { status: 422, body: { error_name: 'unprocessable_entity', errors: [`${field} ${fault}`] } },
        `${field} ${JSON.stringify(value)}`,
      )
    }
  }
  t.match(await put({ vat_registration_number: 1 }), { status: 422 })
  t.strictSame(await read(), before)
})

t.test('all faults are named at once, and none of the right fields is changed', async (t) => {
  const before = await read()
  const { status, body } = await put({
    name: '',
    city: 'Leeds',
    county: 1,
    postcode: 'x'.repeat(256),
    country_code: 'UK',
    vat_registration_number: 'x',
    telephone_number: '1',
  })
  t.equal(status, 422)
  t.strictSame((body['errors'] as string[]).map((fault) => fault.split(' ', 1)[0]).sort(), [
    'country_code',
    'county',
    'name',
    'postcode',
    'telephone_number',
    'vat_registration_number',
  ])
  t.strictSame(await read(), before)
})

t.test('the owner, a collaborator and an API client of the account may change it, and nobody else', async (t) => {
  for (const token of [grace, ada, other]) {
    t.match(await put({ name: 'Compilers' }, token, TWO), { status: 200, body: { id: TWO, name: 'Compilers' } })
    t.equal((await api.callWith(token, 'PUT', `/1.0/account?account_id=${TWO}`, { name: 'Compilers' })).status, 200)
  }
  const unknown = {
    status: 404,
    body: { error_name: 'resource_not_found', errors: [`the account ${ONE} does not exist`] },
  }
  for (const token of [grace, other]) {
    t.strictSame(await put({ name: 'Mine' }, token, ONE), unknown)
    const { status, body } = await api.callWith(token, 'POST', `/1.0/accounts/${ONE}/reset_ftp_password`)
    t.strictSame({ status, body }, unknown)
    t.equal((await api.callWith(token, 'PUT', `/1.0/account?account_id=${ONE}`, { name: 'Mine' })).status, 404)
    t.equal((await api.callWith(token, 'POST', `/1.0/account/reset_ftp_password?account_id=${ONE}`)).status, 404)
  }
  t.match(await put({}, client, 'acc-none1'), {
    status: 404,
    body: { errors: ['the account acc-none1 does not exist'] },
  })
  t.match(await put({}, ada, `${ONE}?account_id=${TWO}`), { status: 404 }, 'not the named one')
  const storage = await api.token(STORAGE_CLIENT)
  for (const [method, path] of [
    ['PUT', `accounts/${ONE}`],
    ['PUT', 'account'],
    ['POST', `accounts/${ONE}/reset_ftp_password`],
    ['POST', 'account/reset_ftp_password'],
  ] as const) {
    t.match(
      await api.callWith(storage, method, `/1.0/${path}`, {}),
      { status: 403, body: { error_name: 'insufficient_scope' } },
      `${method} ${path}`,
    )
  }
  t.equal((await read())['name'], 'Analytical Engines')
})

t.test('reset_ftp_password shows the new password once; the database has its digest', async (t) => {
  const hashOf = async () =>
    (
      await db
        .selectFrom('accounts')
        .select('library_ftp_password_hash')
        .where('id', '=', ONE)
        .executeTakeFirstOrThrow()
    ).library_ftp_password_hash
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
