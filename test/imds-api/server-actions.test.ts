/**
 * What clients ask of servers, with IMDS_API_COMPUTE=none: an action has succeeded at once. Snapshots are images of the
 * account.
 */
import { sql } from 'kysely'
import t from 'tap'
import { purgeServers } from '../../src/imds-api/changes/server-purge.ts'
import { SERVER_ACTIONS } from '../../src/imds-api/model/server-actions.ts'
import { aRegion, ONE, TWO } from '../support/fixtures/region.ts'
import { BASE_URL, nestedImage, TIME } from '../support/fixtures/representations.ts'
import { conflict } from '../support/programs/api-client.ts'
import { anApi, apply, type Method, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

interface Member extends Record<string, unknown> {
  id: string
  status: string
  snapshots: (Record<string, unknown> & { id: string })[]
}

const api = await anApi(t)
const { db } = api.database
const call = async (method: Method, path: string, body?: object, account?: typeof ONE | typeof TWO) => {
  const { status, headers, body: found } = await api.call(method, `/1.0/${path}`, body, account)
  return { status, headers, body: found as Member & { errors: string[] } }
}
const act = (id: string, action: string) => call('POST', `servers/${id}/${action}`)
await api.startPublisher()
const activeServer = async (body: object = {}) => {
  const {
    body: { id },
  } = await call('POST', 'servers', { image: 'img-deb12', name: 'web', ...body })
  await until(async () => (await call('GET', `servers/${id}`)).body.status === 'active', 'the server to be active')
  return id
}

t.test('each action is 202 with the server in its next state, and 409 where it is not possible', async (t) => {
  const id = await activeServer()
  const steps = [
    ['start', 409, 'active'],
    ['reboot', 202, 'active'],
    ['reset', 202, 'active'],
    ['stop', 202, 'inactive'],
    ['stop', 409, 'inactive'],
    ['shutdown', 409, 'inactive'],
    ['reboot', 409, 'inactive'],
    ['reset', 409, 'inactive'],
    ['activate_console', 409, 'inactive'],
    ['start', 202, 'active'],
    ['shutdown', 202, 'inactive'],
    ['snapshot', 202, 'inactive'],
    ['start', 202, 'active'],
    ['snapshot', 202, 'active'],
    ['activate_console', 202, 'active'],
  ] as const
  for (const [action, status, state] of steps) {
    const answer = await act(id, action)
    t.match(
      answer,
      status === 202
        ? { status, body: { id, status: state, resource_type: 'server', user_data: null } }
        : conflict(`${id} is ${state}: ${action} is not possible`),
      action,
    )
    t.equal((await call('GET', `servers/${id}`)).body.status, state, action)
  }
  t.match(await call('GET', 'account'), { body: { servers_used: 1, ram_used: 1024 } }, 'an inactive server counts')
})

t.test('a server that is being created or deleted takes no action', async (t) => {
  const {
    body: { id },
  } = await call('POST', 'servers', { image: 'img-deb12' })
  await until(async () => (await call('GET', `servers/${id}`)).body.status === 'active', 'the server to be active')
  for (const status of ['creating', 'failed', 'unavailable', 'deleting', 'deleted'] as const) {
    await db.updateTable('servers').set({ status }).where('id', '=', id).execute()
    for (const action of SERVER_ACTIONS)
      t.match(await act(id, action), { status: 409 }, `${action} of a server that is ${status}`)
  }
})

t.test('a start sets started_at', async (t) => {
  const id = await activeServer()
  await setRow(db, 'servers', id, { started_at: new Date(0) })
  await act(id, 'stop')
  t.match((await call('GET', `servers/${id}`)).body, { started_at: '1970-01-01T00:00:00Z' })
  t.ok(Date.parse(String((await act(id, 'start')).body['started_at'])) > 0)
})

t.test('the console: its URL, a token in this response only, and its end after 15 minutes', async (t) => {
  const id = await activeServer()
  const { status, body } = await act(id, 'activate_console')
  t.match(
    [status, body],
    [
      202,
      {
        console_url: `https://console.gb1.example.com/${id}`,
        console_token: /^[\w-]{43}$/,
        console_token_expires: TIME,
      },
    ],
  )
  const seconds = (Date.parse(String(body['console_token_expires'])) - Date.now()) / 1000
  t.ok(seconds > 600 && seconds <= 900, String(seconds))
  t.match((await call('GET', `servers/${id}`)).body, {
    console_url: body['console_url'],
    console_token: null,
    console_token_expires: body['console_token_expires'],
  })
  t.not((await act(id, 'activate_console')).body['console_token'], body['console_token'], 'each activation has its own')
  const { rows } = await api.database.pool.query<{ text: string }>(
    'select compute_actions::text as text from compute_actions union all select servers::text from servers',
  )
  t.ok(rows.length > 2)
  t.notOk(
    rows.some(({ text }) => text.includes(String(body['console_token']))),
    'the database does not have the token',
  )
  await setRow(db, 'servers', id, { console_token_expires: new Date(Date.now() - 1) })
  t.match((await call('GET', `servers/${id}`)).body, {
    console_url: null,
    console_token: null,
    console_token_expires: null,
  })
})

t.test('a server that is not active any more has no console, and has none when it is started again', async (t) => {
  const none = { console_url: null, console_token: null, console_token_expires: null }
  const id = await activeServer()
  for (const action of ['stop', 'shutdown']) {
    await act(id, 'activate_console')
    t.match((await act(id, action)).body, { status: 'inactive', ...none })
    t.match((await act(id, 'start')).body, { status: 'active', ...none })
  }
  await act(id, 'activate_console')
  for (const action of ['reboot', 'reset'])
    t.match((await act(id, action)).body, { console_url: /^https:/, console_token_expires: TIME })
  t.match((await call('DELETE', `servers/${id}`)).body, { status: 'deleting', ...none })
})

t.test(
  "a snapshot is an image of the account: in the response, in its Link, and in the server's snapshots",
  async (t) => {
    const id = await activeServer({ image: 'debian-12', compatibility_mode: true })
    const { status, headers, body } = await act(id, 'snapshot')
    t.equal(status, 202)
    const [snapshot] = body.snapshots
    t.match(snapshot!.id, /^img-[0-9a-z]{5}$/)
    t.equal(headers['link'], `<${BASE_URL}/1.0/images/${snapshot!.id}>; rel=snapshot`)
    const { name, created_at } = snapshot as unknown as { name: string; created_at: string }
    t.match(name, new RegExp(`^Snapshot of ${id} 20\\d\\d-`))
    const nested = {
      ...nestedImage('img-deb12', created_at),
      id: snapshot!.id,
      url: `${BASE_URL}/1.0/images/${snapshot!.id}`,
      name,
      username: 'debian',
      description: '',
      source: id,
      official: false,
      public: false,
      owner: ONE,
    }
    t.strictSame(body.snapshots, [nested])
    const full = {
      ...nested,
      source_type: 'snapshot',
      compatibility_mode: true,
      min_ram: null,
      disk_size: 2048,
      virtual_size: 30_720,
      licence_name: null,
      ancestor: null,
    }
    t.match(full, { status: 'available', source_trigger: 'manual', locked: false, arch: 'x86_64' })
    t.strictSame((await call('GET', `images/${snapshot!.id}`)).body, full)
    t.ok(((await call('GET', 'images')).body as unknown as Member[]).some((image) => image.id === snapshot!.id))
    t.ok(((await call('GET', 'account')).body['images'] as Member[]).some((image) => image.id === snapshot!.id))
    t.equal((await call('GET', `images/${snapshot!.id}`, undefined, TWO)).status, 404)
    const second = await act(id, 'snapshot')
    t.equal(second.body.snapshots.length, 2)
    t.match(await call('POST', 'servers', { image: snapshot!.id }), {
      status: 202,
      body: { image: { id: snapshot!.id } },
    })
    t.match(await call('POST', 'servers', { image: snapshot!.id }, TWO), { status: 422 })
    await call('DELETE', `servers/${id}`)
    await api.drained()
    t.equal((await call('GET', `images/${snapshot!.id}`)).status, 200, 'it outlives its server')
  },
)

t.test('an image of the account is changed, locked and deleted; it is gone then', async (t) => {
  const id = await activeServer()
  const image = (await act(id, 'snapshot')).body.snapshots[0]!.id
  const values = {
    name: 'golden',
    username: 'admin',
    description: 'ours',
    arch: 'i686',
    status: 'deprecated',
    public: false,
    compatibility_mode: true,
    min_ram: 512,
  }
  t.match(await call('PUT', `images/${image}`, values), { status: 200, body: { id: image, ...values } })
  t.match(await call('PUT', `images/${image}`, { min_ram: null, status: 'available' }), {
    status: 200,
    body: { ...values, min_ram: null, status: 'available' },
  })
  t.match(await call('PUT', `images/${image}`, {}), { status: 200, body: { name: 'golden' } })
  t.match(await call('PUT', `images/${image}`, { name: 1, arch: 'arm', status: 'deleted', min_ram: 0 }), {
    status: 422,
  })
  t.match(await call('PUT', `images/${image}/lock_resource`), { status: 200, body: { locked: true } })
  t.match(await call('DELETE', `images/${image}`), conflict(`${image} is locked: unlock it first`))
  t.match(await call('PUT', `images/${image}/unlock_resource`), { status: 200, body: { locked: false } })
  const {
    body: { id: user },
  } = await call('POST', 'servers', { image })
  t.match(await call('DELETE', `images/${image}`), conflict(`a server uses ${image}`))
  await call('DELETE', `servers/${user}`)
  await api.drained()
  t.match(await call('DELETE', `images/${image}`), { status: 202, body: { id: image, status: 'deleted' } })
  for (const method of ['GET', 'PUT', 'DELETE'] as const)
    t.match(await call(method, `images/${image}`, method === 'GET' ? undefined : {}), { status: 404 })
  t.strictSame((await call('GET', `servers/${id}`)).body.snapshots, [])
  t.notOk(JSON.stringify((await call('GET', 'images')).body).includes(image))
  t.notOk(JSON.stringify((await call('GET', 'account')).body['images']).includes(image))
  t.match(
    (await call('GET', `servers/${user}`)).body,
    { status: 'deleted', image: { id: image } },
    'a deleted server still names it',
  )
})

t.test('a deleted server and its image lose what is large at once, and are purged', async (t) => {
  const id = await activeServer({ tags: { Name: 'x' }, metadata_options: { http_tokens: 'required' } })
  const image = (await act(id, 'snapshot')).body.snapshots[0]!.id
  await call('PUT', `images/${image}`, { description: 'x'.repeat(10_000) })
  const user = await activeServer({ image })
  for (const one of [id, user]) await call('DELETE', `servers/${one}`)
  await api.drained()
  const rows = () =>
    db.selectFrom('servers').select(['id', 'tags', 'metadata_options']).where('id', 'in', [id, user]).execute()
  t.strictSame(
    (await rows()).map(({ tags, metadata_options }) => [tags, metadata_options]),
    [
      [{}, null],
      [{}, null],
    ],
  )
  t.strictSame(await db.selectFrom('server_keys').select('key').where('server_id', 'in', [id, user]).execute(), [])
  const images = () => db.selectFrom('images').select('description').where('id', '=', image).execute()

  await setRow(db, 'servers', id, { deleted_at: sql<Date>`now() - interval '31 days'` })
  await purgeServers(db)
  t.equal((await rows()).length, 2, 'a hypervisor may have to delete its snapshot')
  t.match(await call('DELETE', `images/${image}`), { status: 202 })
  t.strictSame(await images(), [{ description: '' }])
  await purgeServers(db)
  t.strictSame(
    (await rows()).map((row) => row.id),
    [user],
  )
  t.equal((await images()).length, 1, 'a deleted server still names it')
  await setRow(db, 'servers', user, { deleted_at: sql<Date>`now() - interval '31 days'` })
  await purgeServers(db)
  t.strictSame(await rows(), [])
  t.strictSame(await images(), [])
})

t.test('of the deleted servers of an account the newest 1,000 are kept', async (t) => {
  const id = await activeServer()
  await sql`
    insert into servers (id, account_id, name, status, image_id, server_type_id, zone_id, hypervisor,
      compatibility_mode, disk_encrypted, architecture, deleted_at)
    select 'srv-o' || number, account_id, '', 'deleted', image_id, server_type_id, zone_id, hypervisor, false, false,
      architecture, now() - interval '1 minute' - make_interval(secs => number)
    from servers, generate_series(1, 1100) as number where id = ${id}`.execute(db)
  t.match(await call('DELETE', `servers/${id}`), { status: 202 })
  const { rows } = await sql<{ oldest: string; kept: number }>`
    select count(*) as kept, max(substr(id, 6)::integer) as oldest from servers where id like 'srv-o%'`.execute(db)
  t.ok(rows[0]!.kept <= 1000 && rows[0]!.kept > 900, `${rows[0]!.kept} are kept`)
  t.ok(Number(rows[0]!.oldest) <= 1000, 'the oldest are gone')
  await db.deleteFrom('servers').where('id', 'like', 'srv-o%').execute()
})

t.test('images of the region are 403, those of other accounts 404', async (t) => {
  for (const [method, path] of [
    ['PUT', ''],
    ['DELETE', ''],
    ['PUT', '/lock_resource'],
    ['PUT', '/unlock_resource'],
  ] as const) {
    t.match(
      await call(method, `images/debian-12${path}`, {}),
      { status: 403, body: { error_name: 'forbidden', errors: ['img-deb12 does not belong to this account'] } },
      `${method} ${path}`,
    )
    t.match(await call(method, `images/img-two02${path}`, {}), { status: 404 }, `${method} ${path}`)
    t.match(
      await call(method, `images/img-two02${path}`, {}, TWO),
      { status: path === '' && method === 'DELETE' ? 202 : 200 },
      `${method} ${path}`,
    )
    await db.updateTable('images').set({ status: 'available', locked: false }).where('id', '=', 'img-two02').execute()
  }
})

t.test('every action is recorded, and none waits', async (t) => {
  const id = await activeServer()
  for (const action of ['stop', 'start', 'activate_console'] as const) await act(id, action)
  await call('DELETE', `servers/${id}`)
  const rows = await db
    .selectFrom('compute_actions')
    .select(['kind', 'outcome'])
    .where('server_id', '=', id)
    .orderBy('id')
    .execute()
  t.strictSame(
    rows.map(({ kind, outcome }) => `${kind} ${outcome!}`),
    ['create', 'stop', 'start', 'activate_console', 'delete'].map((kind) => `${kind} succeeded`),
  )
})

t.test('only an account with publish_images publishes an image; without it, its images are its own', async (t) => {
  const id = await activeServer()
  const image = (await act(id, 'snapshot')).body.snapshots[0]!.id
  const allow = (publish_images: boolean) =>
    apply(
      api.database,
      aRegion({
        accounts: aRegion().accounts.map((account) => (account.id === ONE ? { ...account, publish_images } : account)),
      }),
    )
  const isSeen = async () => {
    const list = (await call('GET', 'images', undefined, TWO)).body as unknown as Member[]
    const [{ status: got }, { status: created, body: server }] = [
      await call('GET', `images/${image}`, undefined, TWO),
      await call('POST', 'servers', { image }, TWO),
    ]
    if (created === 202) await call('DELETE', `servers/${server.id}`, undefined, TWO)
    return [list.some((one) => one.id === image), got, created]
  }
  const refused = {
    status: 403,
    body: {
      error_name: 'forbidden',
      errors: [`public: ${ONE} may not publish images: the operator of the region can allow it`],
    },
  }
  t.match(await call('PUT', `images/${image}`, { name: 'Debian 12', public: true }), refused)
  t.match(
    await call('GET', `images/${image}`),
    { body: { name: /^Snapshot/, public: false } },
    'nothing of a refused change',
  )
  t.match(await call('PUT', `images/${image}`, { public: false }), { status: 200 })
  t.strictSame(await isSeen(), [false, 404, 422])
  t.strictSame(await allow(true), [`~ account ${ONE}: publish_images false -> true`])
  t.match(await call('PUT', `images/${image}`, { public: true }), { status: 200, body: { public: true } })
  t.strictSame(await isSeen(), [true, 200, 202])
  await allow(false)
  t.strictSame(await isSeen(), [false, 404, 422], 'withdrawn')
  t.match(
    await call('PUT', `images/${image}`, { name: 'golden', public: true }),
    { status: 200, body: { public: true } },
    'a client sends the present value',
  )
  await allow(true)
  t.strictSame(await isSeen(), [true, 200, 202], 'and allowed again')
  await allow(false)
})

t.test('a server of an image that is private again shows its former texts, and no owner', async (t) => {
  const id = await activeServer()
  const image = (await act(id, 'snapshot')).body.snapshots[0]!.id
  await db.updateTable('accounts').set({ publish_images: true }).where('id', '=', ONE).execute()
  await db.updateTable('images').set({ status: 'available' }).where('id', '=', image).execute()
  const texts = { name: 'golden', username: 'admin', description: 'web server' }
  t.match(await call('PUT', `images/${image}`, { ...texts, public: true }), { status: 200 })
  const { id: server } = (await call('POST', 'servers', { image }, TWO)).body
  const seen = async () => (await call('GET', `servers/${server}`, undefined, TWO)).body['image']
  t.match(await seen(), { id: image, ...texts, source: id, owner: ONE }, 'while it is public')
  await call('PUT', `images/${image}`, { name: 'platinum' })
  t.match(await seen(), { name: 'platinum' }, 'the present text of a public image')
  await call('PUT', `images/${image}`, { name: 'secret', username: 'root', description: 'secret', public: false })
  t.match(await seen(), { id: image, ...texts, source: '', owner: '', public: false })
  t.match(await call('GET', `servers/${id}`), { body: { snapshots: [{ name: 'secret', owner: ONE }] } }, 'the owner')
  await db.updateTable('servers').set({ status: 'active' }).where('id', '=', server).execute()
  const snapshot = (await call('POST', `servers/${server}/snapshot`, undefined, TWO)).body.snapshots[0]!.id
  t.match(await call('GET', `images/${snapshot}`, undefined, TWO), { body: { username: 'admin', source: server } })
  await db.updateTable('accounts').set({ publish_images: false }).where('id', '=', ONE).execute()
})

t.test('lists, and resources that name an image, have the first 255 characters of its description', async (t) => {
  const id = await activeServer()
  const image = (await act(id, 'snapshot')).body.snapshots[0]!.id
  const whole = `${'é'.repeat(254)}😀${'x'.repeat(65_000)}`
  t.match(await call('PUT', `images/${image}`, { description: whole }), { status: 200, body: { description: whole } })
  t.match(await call('GET', `images/${image}`), { body: { description: whole } })
  const cut = 'é'.repeat(254)
  const named = async (path: string) => {
    const { body } = await call('GET', path)
    const lists = [body, body['images'], body.snapshots].filter((list) => Array.isArray(list)) as unknown as Member[][]
    return lists.flat().find((one) => one.id === image)?.['description']
  }
  for (const path of ['images', 'account', `servers/${id}`]) t.equal(await named(path), cut, path)
  t.match(await call('POST', 'servers', { image }), { body: { image: { description: cut } } })
})
