/**
 * What all routes have in common: limits of bodies, unknown parameters, the texts of errors, entity tags of members, and
 * changes that depend on them.
 */
import t from 'tap'
import { withoutDetails } from '../support/error-bodies.ts'
import { ADA, CLIENT_OF, MARY, ONE, TWO, withMary } from '../support/fixtures/region.ts'
import { readDocument } from '../support/openapi-document.ts'
import { aClient } from '../support/programs/api-client.ts'
import { anApi, type ApiAnswer, type Method } from '../support/programs/api.ts'

const api = await anApi(t, { region: withMary() })
const { create } = aClient<{ id: string }>(api)
const [client, ada, mary] = [await api.token(CLIENT_OF[ONE]), await api.userToken(ADA), await api.userToken(MARY)]
const authorization = `Bearer ${client}`

async function send(method: Method, url: string, payload?: string, type?: string): Promise<ApiAnswer> {
  const {
    statusCode: status,
    headers,
    body,
  } = await api.server.inject({
    method,
    url,
    headers: { authorization, ...(type !== undefined && { 'content-type': type }) },
    ...(payload !== undefined && { payload }),
  })
  return { status, headers, body: body === '' ? undefined : withoutDetails(JSON.parse(body)) }
}

t.test('unknown parameters of changes are ignored, in the body and in the query', async (t) => {
  const text = `{"name":"web","id":"grp-mine1","account":{"id":"${TWO}"},"__proto__":{"description":"x"},"constructor":{"prototype":{"description":"x"}}}`
  const { status, body } = await send('POST', '/1.0/server_groups?nested=servers&x[]=1', text, 'application/json')
  t.match({ status, body }, { status: 202, body: { name: 'web', description: '', account: { id: ONE } } })
  t.notMatch(body, { id: 'grp-mine1' })
  t.notOk('description' in {})
})

t.test('a slash that is repeated or at the end does not matter', async (t) => {
  for (const path of ['//1.0/servers', '/1.0//servers', '//1.0//servers//', '/1.0/servers/'])
    t.match(await api.call('GET', path), { status: 200 }, path)
  t.match(await api.call('POST', '/1.0/server_groups/', {}), { status: 202 })
})

t.test('a body above 64 KiB is 413, one of a server above 256 KiB', async (t) => {
  const long = JSON.stringify({ description: 'x'.repeat(1 << 18) })
  t.match(await send('POST', '/1.0/server_groups', long, 'application/json'), {
    status: 413,
    body: { error_name: 'payload_too_large', errors: ['the body must be at most 65536 bytes'] },
  })
  t.match(
    await send(
      'POST',
      '/1.0/servers',
      JSON.stringify({ image: 'img-none', description: 'x'.repeat(260_000) }),
      'application/json',
    ),
    { status: 422 },
    'a server may have a longer one',
  )
  t.match(await send('POST', '/1.0/servers', long, 'application/json'), {
    status: 413,
    body: { errors: ['the body must be at most 262144 bytes'] },
  })
  for (const type of ['application/json', 'text/plain'])
    t.match(
      await send('POST', '/1.0/nothing', '{', type),
      { status: 404 },
      'the body does not matter where there is no route',
    )
})

t.test('a path of an id that is too long is 404, and one that cannot be decoded 400', async (t) => {
  t.match(await send('GET', '/1.0/servers/%zz'), { status: 400, body: { error_name: 'bad_request', errors: [/./] } })
  t.match(await send('GET', `/1.0/servers/srv-${'a'.repeat(2000)}`), {
    status: 404,
    body: { error_name: 'resource_not_found', errors: [/./] },
  })
})

t.test('a file of the documentation that cannot be sent is no defect: nothing is 500', async (t) => {
  const get = async (url: string, headers: Readonly<Record<string, string>> = {}) => {
    const { statusCode: status, body } = await api.server.inject({ url, headers })
    return { status, body: withoutDetails(JSON.parse(body)) }
  }
  for (const path of [
    '/docs/static/%2e%2e/x',
    '/docs/static/%00',
    '/docs/static/index.css%00',
    `/docs/static/${'a'.repeat(5_000)}`,
  ]) {
    t.match(await get(path), { status: 404, body: { error_name: 'resource_not_found' } }, path.slice(0, 40))
  }
  t.match(await get('/docs/static/index.css', { range: 'bytes=99999999-' }), {
    status: 416,
    body: { error_name: 'range_not_satisfiable', errors: ['the file has no such range'] },
  })
  for (const headers of [{ 'if-match': '"x"' }, { 'if-unmodified-since': 'Mon, 01 Jan 1990 00:00:00 GMT' }] as Record<
    string,
    string
  >[]) {
    t.match(await get('/docs/static/index.css', headers), {
      status: 412,
      body: { error_name: 'precondition_failed', errors: [/^the file is not the one/] },
    })
  }
})

t.test('no cache may store a response of the API, since some have a secret', async (t) => {
  for (const [method, path] of [
    ['POST', `api_clients/${CLIENT_OF[TWO]}/reset_secret`],
    ['POST', 'account/reset_ftp_password'],
    ['GET', 'account'],
    ['GET', 'servers/srv-zzzzz'],
  ] as const) {
    t.match((await api.call(method, `/1.0/${path}`, undefined, TWO)).headers, { 'cache-control': 'no-store' }, path)
  }
})

/** Values that are wrong in most places: of another type, too long, out of range, of no form. */
const WRONG: readonly unknown[] = [
  'x'.repeat(70_000),
  '\n',
  '',
  '\0',
  '\ud800',
  'x',
  -1,
  0,
  1e9,
  1.5,
  true,
  null,
  [],
  [null],
  ['\0'],
  [{}],
  [{ server: '\0', protocol: 'x', incoming: 0, outgoing: 'x' }],
  {},
  { '': 1, 'x\n': '\0' },
]
/** What a sentence for people does not have: regular expressions, and phrases of the library. */
const NO_SENTENCE =
  /\\|\^|\$$|NOT|schema|must be (string|integer|boolean|object|array)\b|[<>]=|wrong form|undefined|(characters|to \d+|empty|line) or null/
interface Operation {
  readonly requestBody?: {
    readonly content: { readonly 'application/json': { readonly schema: { readonly properties: object } } }
  }
}

t.test('an error of a wrong body is a sentence without a regular expression, on every route', async (t) => {
  const document = await readDocument<{ paths: Record<string, Record<string, Operation>> }>(api.server)
  let refusals = 0
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, { requestBody }] of Object.entries(methods)) {
      const names = Object.keys(requestBody?.content['application/json'].schema.properties ?? {})
      if (names.length === 0 || path === '/token') continue
      for (const value of WRONG) {
        const { status, body } = await api.call(
          method.toUpperCase() as Method,
          path.replace('{id}', 'x-zzzzz'),
          Object.fromEntries(names.map((name) => [name, value])),
        )
        t.ok(status < 500 || status === 501, `${method} ${path}`)
        if (status === 422) refusals++
        for (const text of (body as { errors?: readonly string[] }).errors ?? [])
          t.notMatch(text, NO_SENTENCE, `${method} ${path} ${JSON.stringify(value).slice(0, 40)}`)
      }
    }
  }
  t.ok(refusals > 300, String(refusals))
})

t.test('an empty id is refused as empty', async (t) => {
  const { id } = await create('server_groups')
  t.match(await api.call('POST', '/1.0/servers', { image: '', server_groups: [''] }), {
    status: 422,
    body: {
      errors: ['image must not be empty', 'server_groups.0 must not be empty'],
    },
  })
  t.match(await api.call('POST', `/1.0/server_groups/${id}/add_servers`, { servers: [{ server: '' }] }), {
    status: 422,
    body: { errors: ['servers.0.server must not be empty'] },
  })
})

t.test('every answer is JSON', async (t) => {
  for (const url of ['/1.0/servers', '/1.0/servers/x', '/nothing', '/token', '/1.0/openapi.json', '/1.0/servers/%zz']) {
    t.match((await send('GET', url)).headers, { 'content-type': /^application\/json/ }, url)
  }
})

async function sendIf(method: Method, path: string, headers: object = {}, payload?: object, token = client) {
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
const idOf = async (path: string, body: object) => (await create(path, body)).id
const tagOf = async (path: string, token = client) => (await sendIf('GET', path, {}, undefined, token)).etag!
const changed = { error_name: 'precondition_failed' }

const email = withMary().users.find(({ id }) => id === MARY)!.email_address
const [server, cloudIp, group, configMap, apiClient, application, invitation, image] = [
  await idOf('servers', { image: 'img-deb12', user_data: 'YQ==', tags: { Role: 'front' } }),
  await idOf('cloud_ips', { name: 'www', port_translators: [{ protocol: 'tcp', incoming: 1, outgoing: 2 }] }),
  await idOf('server_groups', { name: 'front' }),
  await idOf('config_maps', { name: 'front', data: { a: 1 } }),
  await idOf('api_clients', { name: 'ci' }),
  await idOf('applications', { name: 'tablet' }),
  await idOf('collaborations', { email, role: 'admin' }),
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
    t.match(await sendIf('GET', path, { 'if-none-match': tag }, undefined, token), {
      status: 304,
      etag: tag,
      body: undefined,
    })
    for (const [given, status] of [
      ['"x"', 200],
      [tag, 304],
    ] as const)
      t.match(await sendIf('HEAD', path, { 'if-none-match': given }, undefined, token), { status, etag: tag }, path)
    for (const method of methods) {
      const lines = api.audit.length
      for (const given of ['"x"', `W/${tag}`, ''])
        t.match(
          await sendIf(method, path, { 'if-match': given }, {}, token),
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
  t.equal(documented.length, MEMBERS.flatMap(([, methods]) => methods).length + 1, 'these, database servers')
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
    t.match(await sendIf('PUT', path, { 'if-match': `"x", ${tag}` }, body), { status: 200 }, path)
    t.not(await tagOf(path), tag)
    t.match(await sendIf('PUT', path, { 'if-match': tag }, body), { status: 412, etag: await tagOf(path) })
    t.match(await sendIf('PUT', path, { 'if-match': '*' }, {}), { status: 200 })
  }
  t.match(await sendIf('PUT', 'servers/srv-none1', { 'if-match': '*' }, {}), { status: 404 })
})

t.test('the tag of a member changes with what it shows of another', async (t) => {
  await sendIf('POST', `server_groups/${group}/add_servers`, {}, { servers: [{ server }] })
  const tag = await tagOf(`servers/${server}`)
  t.equal((await sendIf('PUT', `server_groups/${group}`, {}, { name: 'back' })).status, 202)
  t.match(await sendIf('DELETE', `servers/${server}`, { 'if-match': tag }), { status: 412, body: changed })
})

t.test('actions and locks respect If-Match too', async (t) => {
  for (const [method, action] of [
    ['PUT', 'lock_resource'],
    ['POST', 'snapshot'],
  ] as const)
    t.match(await sendIf(method, `servers/${server}/${action}`, { 'if-match': '"x"' }), { status: 412, body: changed })
})

t.test('of changes with the same tag at the same time one is made', async (t) => {
  for (const path of [`config_maps/${configMap}`, `server_groups/${group}`]) {
    const headers = { 'if-match': await tagOf(path) }
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, i) => sendIf('PUT', path, headers, { name: `front-${i}` })),
    )
    t.strictSame(answers.map(({ status }) => status).filter((status) => status !== 412).length, 1, path)
  }
})

t.test('a change by another process between the check and the commit is not lost', async (t) => {
  const headers = { 'if-match': await tagOf(`servers/${server}`) }
  const published = await api.during(
    (tx) => tx.updateTable('servers').set({ status: 'active' }).where('id', '=', server).execute(),
    () => sendIf('PUT', `servers/${server}`, headers, { name: 'late' }),
  )
  t.match(published, { status: 412, body: changed })
  const profile = { 'if-match': await tagOf('user', ada) }
  const named = await api.during(
    (tx) => tx.updateTable('users').set({ name: 'Augusta' }).where('id', '=', ADA).execute(),
    () => sendIf('PUT', 'user', profile, { name: 'Ada King' }, ada),
  )
  t.match(named, { status: 412, body: changed })
  t.match(await sendIf('GET', 'user', {}, undefined, ada), { body: { name: 'Augusta' } })
})

t.test('a refused If-Match says whether its tag is an old one, a weak one or one without quotes', async (t) => {
  const path = `config_maps/${await idOf('config_maps', { name: 'quoted', data: {} })}`
  const tag = await tagOf(path)
  for (const [given, error] of [
    ['"x"', / has changed: read it again/],
    [`W/${tag}`, /^If-Match must have the strong tag "[\w-]+": a proxy that compresses/],
    [tag.replaceAll('"', ''), /^If-Match must have the ETag in its double quotes, such as "/],
  ] as const)
    t.match(await sendIf('PUT', path, { 'if-match': given }, { name: 'x' }), { status: 412, body: { errors: [error] } })
})
