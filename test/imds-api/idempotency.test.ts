/** The header Idempotency-Key: what a repeat gets, whose a key is, what is recorded, and for how long. */
import { sql } from 'kysely'
import t from 'tap'
import { KEY_BYTES, MAX_IDEMPOTENCY_KEYS, purgeKeys } from '../../src/imds-api/changes/keyed-change.ts'
import {
  ADA,
  aRegion,
  CLIENT_OF,
  DATABASE_SERVER,
  GRACE,
  ONE,
  TWO,
  WITH_DATABASE_SERVER,
} from '../support/fixtures/region.ts'
import { routesOf } from '../support/fixtures/routes.ts'
import { anApi, countOfLockWaits, type Method, openTransaction, serveDatabase } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const api = await anApi(t, {
  store: { url: 'file:', recordKeysFile: 'record.keys' },
  region: aRegion(WITH_DATABASE_SERVER),
})
const { db } = api.database
await db.updateTable('accounts').set({ cloud_ips_limit: 1_000 }).execute()
await api.startPublisher()
const [one, two, ada, grace] = await Promise.all([
  api.token(CLIENT_OF[ONE]),
  api.token(CLIENT_OF[TWO]),
  api.userToken(ADA),
  api.userToken(GRACE),
])

interface Sent {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly text: string
  readonly id: string
}

async function send(
  key: string | undefined,
  method: Method,
  path: string,
  body?: object,
  token: string = one,
  server = api.server,
): Promise<Sent> {
  const {
    statusCode,
    headers,
    body: text,
  } = await server.inject({
    method,
    url: `/1.0/${path}`,
    headers: { authorization: `Bearer ${token}`, ...(key !== undefined && { 'idempotency-key': key }) },
    ...(body !== undefined && { payload: body }),
  })
  const { id } = JSON.parse(text) as { id: string }
  return { status: statusCode, headers, text, id }
}
const isReplay = ({ headers }: Sent) => headers['idempotent-replayed'] === 'true'
const countOf = async (table: 'cloud_ips' | 'servers' | 'idempotency_keys') =>
  Number(
    (
      await db
        .selectFrom(table)
        .select((eb) => eb.fn.countAll().as('count'))
        .executeTakeFirstOrThrow()
    ).count,
  )
/** The body of an error without the id of its request. */
const withoutId = (text: string) => text.replace(/,"request_id":"[^"]*"/, '')

let keys = 0
const newKey = () => `key-${keys++}`

/** The names of what a repeat does not get: secrets, and the user-data of a server that is deleted meanwhile. */
const OMITTED: Readonly<Record<string, string>> = {
  'POST /api_clients/ID/reset_secret': 'secret',
  'POST /applications/ID/reset_secret': 'secret',
  'POST /accounts/ID/reset_ftp_password': 'library_ftp_password',
  'POST /account/reset_ftp_password': 'library_ftp_password',
  'POST /servers/ID/activate_console': 'console_token',
  'DELETE /servers/ID': 'user_data',
}

t.test('a repeat of each change gets the same response, changes nothing, and its audit line says so', async (t) => {
  const seen = new Set<string>()
  /** Sends a change twice. */
  const twice = async (method: Method, path: string, body?: object, token = one, query = ''): Promise<string> => {
    const key = newKey()
    const name = `${method} /${path.replace(/\b[a-z]{3}-\w+/, 'ID')}`
    seen.add(name)
    const omitted = OMITTED[name]
    const first = await send(key, method, `${path}${query}`, body, token)
    if (omitted === 'user_data') await api.drained()
    const audited = api.audit.length
    const again = await send(key, method, `${path}${query}`, body, token)
    t.ok(first.status < 300, `${name} ${first.text}`)
    t.notOk(isReplay(first), name)
    t.ok(isReplay(again), name)
    t.equal(again.status, first.status, name)
    t.equal(again.headers['content-type'], first.headers['content-type'], name)
    t.equal(again.headers['link'], first.headers['link'], name)
    t.equal(api.audit.length, audited + 1, name)
    const [before, repeated] = api.audit.slice(-2)
    t.strictSame(
      { ...repeated, request_id: before!['request_id'] },
      { ...before, changed: false },
      `${name}: the line of the repeat is there even if a kill lost the first`,
    )
    t.equal(again.headers['idempotent-omitted'], omitted, name)
    const { [omitted ?? '']: value, ...shown } = JSON.parse(first.text) as Record<string, unknown>
    if (omitted === undefined) t.equal(again.text, first.text, name)
    else {
      t.type(value, 'string', name)
      t.strictSame(JSON.parse(again.text), { ...shown, [omitted]: null }, name)
      const kept = await db.selectFrom('idempotency_keys').selectAll().where('key', '=', key).executeTakeFirstOrThrow()
      t.notOk(JSON.stringify(kept).includes(value as string), 'it is not recorded')
    }
    return first.id
  }

  const server = await twice('POST', 'servers', { image: 'img-deb12', user_data: 'aGVsbG8=', tags: { user_data: 'x' } })
  t.equal(await countOf('servers'), 1)
  await api.drained()
  await twice('PUT', `servers/${server}`, { name: 'web "1"' })
  await twice('PUT', `servers/${server}/lock_resource`)
  await twice('PUT', `servers/${server}/unlock_resource`)
  for (const action of ['snapshot', 'activate_console', 'reboot', 'reset', 'shutdown', 'start', 'stop'])
    await twice('POST', `servers/${server}/${action}`)
  const image = (await db.selectFrom('images').select('id').where('source_server_id', '=', server).execute())[0]!.id
  await twice('PUT', `images/${image}`, { name: 'x' })
  await twice('PUT', `images/${image}/lock_resource`)
  await twice('PUT', `images/${image}/unlock_resource`)
  await twice('DELETE', `images/${image}`)
  const cloudIp = await twice('POST', 'cloud_ips', { name: 'x' })
  await twice('PUT', `cloud_ips/${cloudIp}`, { name: 'y' })
  await twice('POST', `cloud_ips/${cloudIp}/map`, { destination: server })
  await twice('POST', `cloud_ips/${cloudIp}/unmap`)
  await twice('DELETE', `cloud_ips/${cloudIp}`)
  const [group, other] = [await twice('POST', 'server_groups', {}), (await send(undefined, 'POST', 'server_groups')).id]
  const servers = [{ server }]
  await twice('PUT', `server_groups/${group}`, { name: 'x' })
  await twice('POST', `server_groups/${group}/add_servers`, { servers })
  await twice('POST', `server_groups/${group}/move_servers`, { servers, destination: other })
  await twice('POST', `server_groups/${other}/remove_servers`, { servers })
  await twice('DELETE', `server_groups/${group}`)
  const map = await twice('POST', 'config_maps', { data: { b: 1.0, a: [1e2] } })
  await twice('PUT', `config_maps/${map}`, { data: { a: 1 } })
  await twice('DELETE', `config_maps/${map}`)
  for (const collection of ['api_clients', 'applications']) {
    const id = await twice('POST', collection, { name: 'x' })
    await twice('PUT', `${collection}/${id}`, { name: 'y' })
    await twice('POST', `${collection}/${id}/reset_secret`)
    await twice('DELETE', `${collection}/${id}`)
  }
  await twice('PUT', `database_servers/${DATABASE_SERVER}`, { name: 'x' })
  await twice('PUT', `accounts/${ONE}`, { name: 'One' })
  await twice('POST', `accounts/${ONE}/reset_ftp_password`)
  await twice('PUT', 'account', { name: 'One' })
  await twice('POST', 'account/reset_ftp_password')
  await twice('PUT', 'user', { name: 'Ada' }, ada)
  await twice('PUT', `users/${ADA}`, { name: 'Ada L' }, ada)
  const invited = await twice('POST', 'collaborations', { email: 'new@example.com', role: 'admin' })
  await db.updateTable('collaborations').set({ invited_at: new Date() }).execute()
  await twice('POST', `collaborations/${invited}/resend`)
  await twice('DELETE', `collaborations/${invited}`)
  const graces = (await db.selectFrom('users').select('email_address').where('id', '=', GRACE).execute())[0]!
  const invite = async () =>
    (await send(undefined, 'POST', 'collaborations', { email: graces.email_address, role: 'admin' })).id
  await twice('POST', `user/collaborations/${await invite()}/reject`, undefined, grace)
  const accepted = await invite()
  await twice('POST', `user/collaborations/${accepted}/accept`, undefined, grace)
  await twice('DELETE', `user/collaborations/${accepted}`, undefined, grace)
  await twice('DELETE', `servers/${server}`)

  const changes = routesOf(api.server)
    .filter(({ method, path }) => method !== 'GET' && !path.endsWith('/*'))
    .map(({ method, path }) => `${method} ${path}`)
  const unimplemented = /^POST \/(?:load_balancers|database_\w+|firewall_\w+|volumes|servers\/ID\/resize)$/
  t.strictSame(
    changes.filter((route) => !seen.has(route) && !unimplemented.test(route)),
    [],
    'these are all routes with a change',
  )
})

t.test('the same key with another method, path or body gets 422, and nothing is changed', async (t) => {
  const key = newKey()
  const { id } = await send(key, 'POST', 'cloud_ips', { name: 'a' })
  const before = await countOf('cloud_ips')
  for (const [method, path, body] of [
    ['POST', 'cloud_ips', { name: 'b' }],
    ['POST', 'cloud_ips', undefined],
    ['POST', `cloud_ips?account_id=${ONE}`, { name: 'a' }],
    ['PUT', `cloud_ips/${id}`, { name: 'a' }],
    ['DELETE', `cloud_ips/${id}`, undefined],
  ] as const) {
    const { status, text } = await send(key, method, path, body)
    t.equal(status, 422, `${method} ${path}`)
    t.match(JSON.parse(text), {
      error_name: 'unprocessable_entity',
      details: [{ field: 'Idempotency-Key', code: 'not_allowed' }],
    })
  }
  t.equal(await countOf('cloud_ips'), before)
  t.ok(isReplay(await send(`"${key}"`, 'POST', 'cloud_ips', { name: 'a' })), 'a quoted key is the same key')
})

t.test('a malformed key gets 400; a key on a GET is ignored; without a key nothing is recorded', async (t) => {
  const before = await countOf('idempotency_keys')
  t.match(await send('a b', 'POST', 'cloud_ips', {}), { status: 400, text: /Idempotency-Key must be 1 to 255/ })
  t.match(await send('a b', 'GET', 'account'), { status: 200 })
  const [first, second] = [
    await send(undefined, 'POST', 'cloud_ips', {}),
    await send(undefined, 'POST', 'cloud_ips', {}),
  ]
  t.not(first.id, second.id)
  t.notOk('idempotent-replayed' in first.headers)
  t.equal(await countOf('idempotency_keys'), before)
})

t.test('the keys of accounts, of API clients, of users and of their applications are apart', async (t) => {
  const key = newKey()
  const query = `?account_id=${ONE}`
  await db
    .insertInto('applications')
    .values({ id: 'app-other', account_id: ONE, name: '', description: '', secret_sha256: null })
    .execute()
  const { id: familyId } = await db
    .insertInto('token_families')
    .values({ application_id: 'app-other', user_id: ADA, scopes: ['infrastructure'] })
    .returning('id')
    .executeTakeFirstOrThrow()
  const other = await db
    .transaction()
    .execute((tx) => api.auth.tokens.issue(tx, { familyId }, ['infrastructure'], 7200))
  const sent = [
    await send(key, 'POST', 'cloud_ips', {}),
    await send(key, 'POST', 'cloud_ips', {}, two),
    await send(key, 'POST', `cloud_ips${query}`, {}, ada),
    await send(key, 'POST', `cloud_ips${query}`, {}, other),
  ]
  t.equal(new Set(sent.map(({ id }) => id)).size, 4)
  t.notOk(sent.some(isReplay))
})

t.test('a refusal of the change is recorded, so that a repeat cannot succeed later', async (t) => {
  const key = newKey()
  const { id } = await send(undefined, 'POST', 'servers', { image: 'img-deb12' })
  await send(undefined, 'PUT', `servers/${id}/lock_resource`)
  const first = await send(key, 'DELETE', `servers/${id}`)
  await send(undefined, 'PUT', `servers/${id}/unlock_resource`)
  const again = await send(key, 'DELETE', `servers/${id}`)
  t.match([first, again], [{ status: 409 }, { status: 409, headers: { 'idempotent-replayed': 'true' } }])
  t.equal(withoutId(again.text), withoutId(first.text))
  t.match(await send(newKey(), 'DELETE', `servers/${id}`), { status: 202 }, 'a new key has it tried again')
})

t.test('what is refused before the change, or with 429 or 5xx, is not recorded', async (t) => {
  const key = newKey()
  t.match(await send(key, 'POST', 'cloud_ips', { name: 1 }), { status: 422 })
  t.match(await send(key, 'POST', 'cloud_ips', {}, 'wrong'), { status: 401 })
  await db.updateTable('accounts').set({ status: 'suspended' }).where('id', '=', ONE).execute()
  t.match(await send(key, 'POST', 'cloud_ips', { name: 'x' }), { status: 403 })
  await db.updateTable('accounts').set({ status: 'active' }).where('id', '=', ONE).execute()
  t.match(await send(key, 'POST', 'servers', { image: 'img-deb12', snapshots_schedule: '1' }), { status: 501 })
  const made = await send(key, 'POST', 'cloud_ips', { name: 'x' })
  t.match(made, { status: 201 })
  t.notOk(isReplay(made))
  await db.updateTable('accounts').set({ status: 'suspended' }).where('id', '=', ONE).execute()
  t.match(
    await send(key, 'POST', 'cloud_ips', { name: 'x' }),
    { status: 201, text: made.text },
    'replayed in any state',
  )
  await db.updateTable('accounts').set({ status: 'active' }).where('id', '=', ONE).execute()
  const { id } = await send(undefined, 'POST', 'collaborations', { email: 'late@example.com', role: 'admin' })
  await db.updateTable('collaborations').set({ invited_at: new Date() }).where('id', '=', id).execute()
  const resends = []
  for (let i = 0; i < 6; i++) {
    resends.push(await send(undefined, 'POST', `collaborations/${id}/resend`))
    await db.updateTable('collaborations').set({ invited_at: new Date() }).where('id', '=', id).execute()
  }
  t.equal(resends.at(-1)!.status, 429)
  const late = newKey()
  t.match(await send(late, 'POST', `collaborations/${id}/resend`), { status: 429 })
  await db.updateTable('collaborations').set({ resends: [] }).where('id', '=', id).execute()
  t.match(await send(late, 'POST', `collaborations/${id}/resend`), { status: 200 })
})

t.test('a repeat needs the right that the change needed', async (t) => {
  const { id } = await send(undefined, 'POST', 'api_clients', {})
  const { secret } = JSON.parse((await send(undefined, 'POST', `api_clients/${id}/reset_secret`)).text) as {
    secret: string
  }
  const token = await api.token(id, { secret })
  const key = newKey()
  t.match(await send(key, 'POST', 'cloud_ips', {}, token), { status: 201 })
  await send(undefined, 'DELETE', `api_clients/${id}`)
  t.match(await send(key, 'POST', 'cloud_ips', {}, token), { status: 401 })
})

t.test('a repeat after 24 hours makes the change again, and expired keys are purged', async (t) => {
  const key = newKey()
  const first = await send(key, 'POST', 'cloud_ips', {})
  const age = (hours: number) =>
    sql`update idempotency_keys set created_at = now() - make_interval(hours => ${hours}) where key = ${key}`.execute(
      db,
    )
  await age(23)
  t.equal((await send(key, 'POST', 'cloud_ips', {})).id, first.id)
  await age(24)
  await purgeKeys(db)
  const second = await send(key, 'POST', 'cloud_ips', {})
  t.not(second.id, first.id)
  t.equal((await send(key, 'POST', 'cloud_ips', {})).id, second.id)
  const before = await countOf('idempotency_keys')
  await age(24)
  await purgeKeys(db)
  t.equal(await countOf('idempotency_keys'), before - 1)
})

t.test('a clock that is a day ahead ends no key that is younger than 22 hours', async (t) => {
  const key = newKey()
  const first = await send(key, 'POST', 'cloud_ips', {})
  await sql`update region set keys_deleted_until = now() - interval '48 hours'`.execute(db)
  await sql`update idempotency_keys set created_at = now() - interval '26 hours' where key = ${key}`.execute(db)
  await purgeKeys(db)
  t.equal((await send(key, 'POST', 'cloud_ips', {})).id, first.id, 'as if the last purge was an hour ago')
  for (let hours = 0; hours < 22; hours += 2) await purgeKeys(db)
  t.not((await send(key, 'POST', 'cloud_ips', {})).id, first.id)
})

t.test('the user_data of a deleted server is in no recorded response', async (t) => {
  const key = newKey()
  const body = { image: 'img-deb12', user_data: Buffer.from('its secret').toString('base64') }
  const first = await send(key, 'POST', 'servers', body)
  const kept = await db.selectFrom('idempotency_keys').select('body').where('key', '=', key).executeTakeFirstOrThrow()
  t.notOk(kept.body.includes(body.user_data))
  t.equal((await send(key, 'POST', 'servers', body)).text, first.text)
  await api.drained()
  await send(undefined, 'DELETE', `servers/${first.id}`)
  await api.drained()
  const last = await send(key, 'POST', 'servers', body)
  t.match(last, { status: 202, headers: { 'idempotent-omitted': 'user_data' } })
  t.match(JSON.parse(last.text), { id: first.id, user_data: null })
})

t.test('an API client has at most 10,000 keys, and less of long responses: the oldest are deleted', async (t) => {
  const [first, last] = [newKey(), newKey()]
  const keysOf = async () =>
    Number(
      (
        await db
          .selectFrom('idempotency_keys')
          .select((eb) => eb.fn.countAll().as('count'))
          .where('owner', '=', TWO)
          .executeTakeFirstOrThrow()
      ).count,
    )
  await db.deleteFrom('idempotency_keys').where('owner', '=', TWO).execute()
  await send(first, 'POST', 'cloud_ips', {}, two)
  await sql`
    insert into idempotency_keys (owner, client, key, position, digest, status, body, omitted)
    select ${TWO}, 'cli-two02', 'old-' || n, (n + 1) * ${KEY_BYTES}::bigint, '', 200, '', '{}'
    from generate_series(1, ${MAX_IDEMPOTENCY_KEYS - 1}) as n`.execute(db)
  t.ok(isReplay(await send(first, 'POST', 'cloud_ips', {}, two)))
  await send(last, 'POST', 'server_groups', {}, two)
  t.equal(await keysOf(), MAX_IDEMPOTENCY_KEYS)
  t.notOk(isReplay(await send(first, 'POST', 'server_groups', {}, two)), 'the oldest key has ended')
  t.ok(isReplay(await send(last, 'POST', 'server_groups', {}, two)))
  await send(newKey(), 'POST', 'config_maps', { data: { text: 'x'.repeat(2 ** 20 - 100) } }, two)
  t.equal(await keysOf(), MAX_IDEMPOTENCY_KEYS - 2 ** 20 / KEY_BYTES + 1)
})

t.test('the keys of one user, with all applications, take no room of others in the account', async (t) => {
  const first = newKey()
  await send(first, 'POST', 'cloud_ips', {}, two)
  await sql`
    insert into idempotency_keys (owner, client, key, position, digest, status, body, omitted)
    select ${TWO}, ${`${GRACE} app-other`}, 'old-' || n, n * ${KEY_BYTES}::bigint, '', 200, '', '{}'
    from generate_series(1, ${MAX_IDEMPOTENCY_KEYS}) as n`.execute(db)
  t.match(await send(newKey(), 'POST', `cloud_ips?account_id=${TWO}`, {}, grace), { status: 201 })
  t.ok(isReplay(await send(first, 'POST', 'cloud_ips', {}, two)))
  const { rows } = await sql`select from idempotency_keys where owner = ${TWO} and client like ${`${GRACE} %`}`.execute(
    db,
  )
  t.equal(rows.length, MAX_IDEMPOTENCY_KEYS)
})

t.test('the keys of a user who was once invited to an account are not in its room', async (t) => {
  const { email_address: email } = (await db.selectFrom('users').selectAll().where('id', '=', GRACE).execute())[0]!
  const { id } = await send(undefined, 'POST', 'collaborations', { email, role: 'admin' })
  const reject = () => send(newKey(), 'POST', `user/collaborations/${id}/reject`, undefined, grace)
  t.match([await reject(), await reject(), await reject()], [{ status: 200 }, { status: 409 }, { status: 409 }])
  const { rows } = await sql<{ owner: string }>`
    select distinct owner from idempotency_keys where client like ${`${GRACE} app%`} and owner <> ${TWO}`.execute(db)
  t.strictSame(rows, [{ owner: GRACE }])
})

t.test('a refusal for want of a right is not recorded, and a deleted API client leaves no keys', async (t) => {
  const key = newKey()
  t.match(await send(key, 'PUT', 'user', { name: 'Another' }, two), { status: 403 })
  const { rows } = await sql`select from idempotency_keys where key = ${key}`.execute(db)
  t.equal(rows.length, 0)
  const { id } = await send(undefined, 'POST', 'api_clients', {})
  const token = await db
    .transaction()
    .execute((tx) => api.auth.tokens.issue(tx, { clientId: id, accountId: ONE }, ['infrastructure', 'orbit'], 3_600))
  t.match(await send(newKey(), 'POST', 'cloud_ips', {}, token), { status: 201 })
  const keysOfClient = async () =>
    (await sql`select from idempotency_keys where client = ${id}`.execute(db)).rows.length
  t.equal(await keysOfClient(), 1)
  await send(undefined, 'DELETE', `api_clients/${id}`)
  t.equal(await keysOfClient(), 0)
})

t.test('while a request is in flight, its repeat gets 409; of two processes only one makes the change', async (t) => {
  const key = newKey()
  const { server: other } = await serveDatabase(t, api.database)
  const client = await openTransaction(db)
  await sql`select from accounts where id = ${ONE} for update`.execute(client)
  const first = send(key, 'POST', 'cloud_ips', { name: 'slow' })
  await until(async () => (await countOfLockWaits(api.database.pool)) > 0, 'the change to wait')
  const conflict = { status: 409, headers: { 'retry-after': '1' }, text: /has not ended yet/ }
  t.match(await send(key, 'POST', 'cloud_ips', { name: 'slow' }), conflict)
  const repeat = send(key, 'POST', 'cloud_ips', { name: 'slow' }, one, other)
  await client.commit().execute()
  // the first gives the key back between its tries, so the repeat may have it: then the first gets 409
  const made = (await Promise.all([first, repeat])).filter(({ status }) => status !== 409)
  const [{ id } = {}, ...others] = made
  t.ok(id)
  for (const replayed of others) t.equal(replayed.id, id)
  t.match(await send(key, 'POST', 'cloud_ips', { name: 'slow' }, one, other), {
    id,
    headers: { 'idempotent-replayed': 'true' },
  })
})
