/** Entity tags of members, and changes that depend on them. */
import t from 'tap'
import { withoutDetails } from '../support/error-bodies.ts'
import { ADA, CLIENT_OF, MARY, ONE, withMary } from '../support/fixtures/region.ts'
import { readDocument } from '../support/openapi-document.ts'
import { anApi, type Method } from '../support/programs/api.ts'

const api = await anApi(t, { region: withMary() })
const [client, ada, mary] = [await api.token(CLIENT_OF[ONE]), await api.userToken(ADA), await api.userToken(MARY)]

async function send(method: Method, path: string, headers: object = {}, payload?: object, token = client) {
  const response = await api.server.inject({
    method,
    url: `/1.0/${path}`,
    headers: { authorization: `Bearer ${token}`, ...headers },
    ...(payload !== undefined && { payload }),
  })
  const { statusCode: status, headers: answered, body } = response
  return {
    status,
    etag: answered.etag,
    body: (body === '' ? undefined : withoutDetails(JSON.parse(body))) as Readonly<Record<string, string>> | undefined,
  }
}
const create = async (path: string, body: object) => (await send('POST', path, {}, body)).body!['id']!
const tagOf = async (path: string, token = client) => (await send('GET', path, {}, undefined, token)).etag!
const changed = { error_name: 'precondition_failed' }

const email = withMary().users.find(({ id }) => id === MARY)!.email_address
const [server, cloudIp, group, configMap, apiClient, application, invitation, image] = [
  await create('servers', { image: 'img-deb12', user_data: 'YQ==', tags: { Role: 'front' } }),
  await create('cloud_ips', { name: 'www', port_translators: [{ protocol: 'tcp', incoming: 1, outgoing: 2 }] }),
  await create('server_groups', { name: 'front' }),
  await create('config_maps', { name: 'front', data: { a: 1 } }),
  await create('api_clients', { name: 'ci' }),
  await create('applications', { name: 'tablet' }),
  await create('collaborations', { email, role: 'admin' }),
  'img-deb12',
]
/** Every member that can be changed, and who changes it: default the API client. */
const MEMBERS: readonly (readonly [path: string, methods: readonly ('PUT' | 'DELETE')[], token?: string])[] = [
  [`servers/${server}`, ['PUT', 'DELETE']],
  [`cloud_ips/${cloudIp}`, ['PUT', 'DELETE']],
  [`server_groups/${group}`, ['PUT', 'DELETE']],
  [`config_maps/${configMap}`, ['PUT', 'DELETE']],
  [`api_clients/${apiClient}`, ['PUT', 'DELETE']],
  [`applications/${application}`, ['PUT', 'DELETE']],
  [`images/${image}`, ['PUT', 'DELETE']],
  [`accounts/${ONE}`, ['PUT']],
  ['account', ['PUT']],
  [`users/${ADA}`, ['PUT'], ada],
  ['user', ['PUT'], ada],
  [`collaborations/${invitation}`, ['DELETE']],
  [`user/collaborations/${invitation}`, ['DELETE'], mary],
]

t.test('every change of a member is refused if If-Match does not name the tag of its GET', async (t) => {
  for (const [path, methods, token] of MEMBERS) {
    const tag = await tagOf(path, token)
    t.match(tag, /^"[\w-]{22}"$/, path)
    t.match(await send('GET', path, { 'if-none-match': tag }, undefined, token), {
      status: 304,
      etag: tag,
      body: undefined,
    })
    for (const [given, status] of [
      ['"x"', 200],
      [tag, 304],
    ] as const)
      t.match(await send('HEAD', path, { 'if-none-match': given }, undefined, token), { status, etag: tag }, path)
    for (const method of methods) {
      const lines = api.audit.length
      for (const given of ['"x"', `W/${tag}`, ''])
        t.match(
          await send(method, path, { 'if-match': given }, {}, token),
          { status: 412, etag: tag, body: changed },
          path,
        )
      t.equal(api.audit.length, lines)
    }
    t.equal(await tagOf(path, token), tag)
  }
})

t.test('the OpenAPI document has If-Match for these changes', async (t) => {
  const { paths } = await readDocument<{
    paths: Record<string, Record<string, { parameters: { name: string }[]; responses: object }>>
  }>(api.server)
  const named = (path: string, method: string) => paths[path]![method]!.parameters.map(({ name }) => name)
  const documented = Object.entries(paths).flatMap(([path, operations]) =>
    ['put', 'delete']
      .filter((method) => operations[method] !== undefined && !path.endsWith('_resource'))
      .map((method) => ({ path, method })),
  )
  for (const { path, method } of documented) t.ok(named(path, method).includes('If-Match'), `${method} ${path}`)
  t.equal(
    documented.length,
    MEMBERS.flatMap(([, methods]) => methods).length + 3,
    'these, database servers, identities',
  )
  t.ok(named('/1.0/servers/{id}', 'get').includes('If-None-Match'))
  t.match(paths['/1.0/servers/{id}']!['get']!.responses, { 200: { headers: { ETag: {} } }, 304: {} })
  t.notOk(named('/1.0/servers', 'get').includes('If-None-Match'))
})

t.test('a change with the present tag is made, and gives the member another one', async (t) => {
  for (const [path, body] of [
    [`servers/${server}`, { name: 'web-1' }],
    [`config_maps/${configMap}`, { data: { a: 1.0, b: '\u00e9' } }],
    [`cloud_ips/${cloudIp}`, { name: 'mail' }],
  ] as const) {
    const tag = await tagOf(path)
    t.match(await send('PUT', path, { 'if-match': `"x", ${tag}` }, body), { status: 200 }, path)
    t.not(await tagOf(path), tag)
    t.match(await send('PUT', path, { 'if-match': tag }, body), { status: 412, etag: await tagOf(path) })
    t.match(await send('PUT', path, { 'if-match': '*' }, {}), { status: 200 })
  }
  t.match(await send('PUT', 'servers/srv-none1', { 'if-match': '*' }, {}), { status: 404 })
})

t.test('the tag of a member changes with what it shows of another', async (t) => {
  await send('POST', `server_groups/${group}/add_servers`, {}, { servers: [{ server }] })
  const tag = await tagOf(`servers/${server}`)
  t.equal((await send('PUT', `server_groups/${group}`, {}, { name: 'back' })).status, 202)
  t.match(await send('DELETE', `servers/${server}`, { 'if-match': tag }), { status: 412, body: changed })
})

t.test('actions and locks respect If-Match too', async (t) => {
  for (const [method, action] of [
    ['PUT', 'lock_resource'],
    ['POST', 'snapshot'],
  ] as const)
    t.match(await send(method, `servers/${server}/${action}`, { 'if-match': '"x"' }), { status: 412, body: changed })
})

t.test('of changes with the same tag at the same time one is made', async (t) => {
  for (const path of [`config_maps/${configMap}`, `server_groups/${group}`]) {
    const headers = { 'if-match': await tagOf(path) }
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, i) => send('PUT', path, headers, { name: `front-${String(i)}` })),
    )
    t.strictSame(answers.map(({ status }) => status).filter((status) => status !== 412).length, 1, path)
  }
})

t.test('a change by another process between the check and the commit is not lost', async (t) => {
  const headers = { 'if-match': await tagOf(`servers/${server}`) }
  const published = await api.during(
    (tx) => tx.updateTable('servers').set({ status: 'active' }).where('id', '=', server).execute(),
    () => send('PUT', `servers/${server}`, headers, { name: 'late' }),
  )
  t.match(published, { status: 412, body: changed })
  const profile = { 'if-match': await tagOf('user', ada) }
  const named = await api.during(
    (tx) => tx.updateTable('users').set({ name: 'Augusta' }).where('id', '=', ADA).execute(),
    () => send('PUT', 'user', profile, { name: 'Ada King' }, ada),
  )
  t.match(named, { status: 412, body: changed })
  t.match(await send('GET', 'user', {}, undefined, ada), { body: { name: 'Augusta' } })
})

t.test('a refused If-Match says whether its tag is an old one, a weak one or one without quotes', async (t) => {
  const path = `config_maps/${await create('config_maps', { name: 'quoted', data: {} })}`
  const tag = await tagOf(path)
  for (const [given, error] of [
    ['"x"', / has changed: read it again/],
    [`W/${tag}`, /^If-Match must have the strong tag "[\w-]+": a proxy that compresses/],
    [tag.replaceAll('"', ''), /^If-Match must have the ETag in its double quotes, such as "/],
  ] as const)
    t.match(await send('PUT', path, { 'if-match': given }, { name: 'x' }), { status: 412, body: { errors: [error] } })
})
