/**
 * What all routes have in common: bodies, content types, methods, unknown parameters, other accounts, and the shape of
 * every error.
 */
import t from 'tap'
import { withoutDetails } from '../support/error-bodies.ts'
import { CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { readDocument } from '../support/openapi-document.ts'
import { anApi, basic, type ApiAnswer, type Method } from '../support/programs/api.ts'

const api = await anApi(t)
const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`

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
const create = async (path: string, body: object, account: typeof ONE | typeof TWO = ONE) => {
  const { status, body: made } = await api.call('POST', `/1.0/${path}`, body, account)
  if (status > 299) throw new Error(`${path}: ${JSON.stringify(made)}`)
  return made as { id: string; interfaces: { id: string }[] }
}

/** An operation of the OpenAPI document. */
interface DocumentedOperation {
  readonly parameters?: readonly { readonly in: string; readonly name: string }[]
  readonly operationId?: string
  readonly summary?: string
  readonly description?: string
  readonly requestBody?: { readonly required?: boolean; readonly content: object }
  readonly responses: Readonly<Record<string, object>>
}

/** Every route with an id: method, path with ID, and a body that is right. */
const MEMBERS: readonly (readonly [Method, string, object?])[] = [
  ['GET', 'servers/ID'],
  ['PUT', 'servers/ID', { name: 'x' }],
  ['DELETE', 'servers/ID'],
  ['PUT', 'servers/ID/lock_resource'],
  ['PUT', 'servers/ID/unlock_resource'],
  ['GET', 'cloud_ips/ID'],
  ['PUT', 'cloud_ips/ID', { name: 'x' }],
  ['DELETE', 'cloud_ips/ID'],
  ['POST', 'cloud_ips/ID/map', { destination: 'int-zzzzz' }],
  ['POST', 'cloud_ips/ID/unmap'],
  ['GET', 'server_groups/ID'],
  ['PUT', 'server_groups/ID', { name: 'x' }],
  ['DELETE', 'server_groups/ID'],
  ['POST', 'server_groups/ID/add_servers', { servers: [] }],
  ['POST', 'server_groups/ID/remove_servers', { servers: [] }],
  ['POST', 'server_groups/ID/move_servers', { servers: [], destination: 'grp-zzzzz' }],
  ['GET', 'interfaces/ID'],
]

t.test('a resource of another account is 404 on every route, with the text of one that does not exist', async (t) => {
  const server = await create('servers', { image: 'img-deb12' }, TWO)
  const theirs: Readonly<Record<string, string>> = {
    servers: server.id,
    interfaces: server.interfaces[0]!.id,
    cloud_ips: (await create('cloud_ips', {}, TWO)).id,
    server_groups: (await create('server_groups', {}, TWO)).id,
  }
  for (const [method, path, body] of MEMBERS) {
    const collection = path.split('/', 1)[0]!
    const missing = `${theirs[collection]!.slice(0, 4)}zzzzz`
    const [other, none] = [
      await api.call(method, `/1.0/${path.replace('ID', theirs[collection]!)}`, body),
      await api.call(method, `/1.0/${path.replace('ID', missing)}`, body),
    ]
    t.match(other, { status: 404, body: { error_name: 'resource_not_found' } }, `${method} ${path}`)
    t.equal(JSON.stringify(other.body).replaceAll(theirs[collection]!, missing), JSON.stringify(none.body))
    t.match(
      await api.call('GET', `/1.0/${collection}/${theirs[collection]!}`, undefined, TWO),
      { status: 200 },
      'and it is as it was',
    )
  }
  for (const list of ['servers', 'cloud_ips']) t.strictSame((await api.call('GET', `/1.0/${list}`)).body, [], list)
  t.equal(((await api.call('GET', '/1.0/server_groups')).body as object[]).length, 1)
})

t.test('an empty body is an object without parameters for each kind of change', async (t) => {
  const { id } = await create('cloud_ips', {})
  t.match(await send('PUT', `/1.0/cloud_ips/${id}`, ''), { status: 200 })
  t.match(await send('POST', `/1.0/cloud_ips/${id}/unmap`, ''), { status: 409 })
  t.match(await send('POST', `/1.0/cloud_ips/${id}/map`, ''), {
    status: 422,
    body: { errors: ['destination is missing'] },
  })
  t.match(await send('POST', '/1.0/cloud_ips', ''), { status: 201 })
  t.match(await send('DELETE', `/1.0/cloud_ips/${id}`, ''), { status: 200 })
})

t.test('unknown parameters of changes are ignored, in the body and in the query', async (t) => {
  const text = `{"name":"web","colour":"red","id":"grp-mine1","account":{"id":"${TWO}"},"__proto__":{"description":"x"},"constructor":{"prototype":{"description":"x"}}}`
  const { status, body } = await send('POST', '/1.0/server_groups?nested=servers&x[]=1', text, 'application/json')
  t.equal(status, 202)
  t.match(body, { description: '' })
  t.notOk('description' in {})
  t.match(body, { name: 'web', account: { id: ONE } })
  t.notMatch(body, { id: 'grp-mine1' })
  t.match(await api.call('GET', '/1.0/servers?nested=all'), { status: 200 })
})

t.test('an error says what was meant, for people and for programs', async (t) => {
  const detailsOf = async (method: Method, url: string, body?: object, authorized = authorization) =>
    (
      await api.server.inject({
        method,
        url,
        headers: { authorization: authorized },
        ...(body !== undefined && { payload: body }),
      })
    ).json<{ details: unknown }>().details
  const [{ id: group }, { id: cloudIp }] = [await create('server_groups', {}), await create('cloud_ips', {})]
  const rows: readonly [Method, string, object | undefined, string | null, string, string][] = [
    [
      'GET',
      '/1.0/server',
      undefined,
      null,
      'resource_not_found',
      'there is no /1.0/server (did you mean /1.0/servers?)',
    ],
    [
      'GET',
      '/1.0/servers/cip-abcde',
      undefined,
      null,
      'wrong_kind',
      'the server cip-abcde does not exist: cip-abcde is the id of a cloud IP',
    ],
    ['GET', '/1.0/servers/srv-zzzzz', undefined, null, 'resource_not_found', 'the server srv-zzzzz does not exist'],
    [
      'POST',
      '/1.0/servers',
      { image: 'debian-99' },
      'image',
      'does_not_exist',
      'image: debian-99 does not exist: GET /1.0/images lists them',
    ],
    [
      'POST',
      '/1.0/servers',
      { image: 'typ-small' },
      'image',
      'wrong_kind',
      'image: typ-small does not exist: typ-small is the id of a server type',
    ],
    [
      'POST',
      `/1.0/server_groups/${group}/add_servers`,
      { servers: ['srv-zzzzz'] },
      'servers.0',
      'wrong_type',
      'servers.0 must be an object such as {"server":"srv-6ilgo"}',
    ],
    [
      'PUT',
      `/1.0/accounts/${ONE}`,
      { country_code: 'UK' },
      'country_code',
      'malformed',
      'country_code must be a two-letter code of ISO 3166-1 (did you mean GB?)',
    ],
    [
      'POST',
      `/1.0/cloud_ips/${cloudIp}/map`,
      { destination: 'img-deb12' },
      'destination',
      'wrong_kind',
      'destination must be the id of an interface, a server, a server group or a database server',
    ],
  ]
  for (const [method, url, body, field, code, message] of rows)
    t.strictSame(await detailsOf(method, url, body), [{ field, code, message }], url)
  const scheme =
    'the scheme of the Authorization header must be Bearer: get an access token at /token with the id and secret of a client, and send it as Authorization: Bearer TOKEN'
  for (const header of [basic(CLIENT_OF[ONE]), 'Token x', 'x'])
    t.strictSame(await detailsOf('GET', '/1.0/servers', undefined, header), [
      { field: null, code: 'unauthorized', message: scheme },
    ])
})

t.test('with Prefer: handling=strict, unknown parameters of query and body are refused and named', async (t) => {
  const { id } = await create('server_groups', {})
  const strict = async (
    method: Method,
    url: string,
    body?: object,
    prefer = 'respond-async, Handling="strict"; x=1',
  ) => {
    const {
      statusCode: status,
      headers,
      body: text,
    } = await api.server.inject({
      method,
      url,
      headers: { authorization, prefer },
      ...(body !== undefined && { payload: body }),
    })
    return {
      status,
      applied: headers['preference-applied'],
      errors: (JSON.parse(text) as { errors?: readonly string[] }).errors,
    }
  }
  const applied = 'handling=strict'
  t.strictSame(
    await strict('POST', `/1.0/server_groups/${id}/add_servers?nested=all&account_id=${ONE}`, {
      servers: [{ server: 'srv-zzzzz', colour: 'red' }],
      unread: 1,
    }),
    {
      status: 422,
      applied,
      errors: [
        'nested is not a parameter of the query',
        'servers.0.colour is not a parameter of the body',
        'unread is not a parameter of the body',
      ],
    },
  )
  t.strictSame(await strict('POST', '/1.0/cloud_ips/cip-zzzzz/unmap', { x: 1 }), {
    status: 422,
    applied,
    errors: ['x is not a parameter of the body'],
  })
  t.strictSame(await strict('GET', '/1.0/user/collaborations?account_id=x'), {
    status: 422,
    applied,
    errors: ['account_id is not a parameter of the query'],
  })
  t.strictSame(await strict('POST', '/1.0/config_maps', { data: { any: { thing: [{}] } }, tags: {} }), {
    status: 422,
    applied,
    errors: ['tags is not a parameter of the body'],
  })
  t.match(await strict('POST', '/1.0/config_maps', { data: { any: { thing: [{}] } } }), { status: 200, applied })
  t.match(await strict('GET', `/1.0/servers?account_id=${ONE}`), { status: 200, applied, errors: undefined })
  t.match(await strict('PUT', `/1.0/server_groups/${id}`, { name: 'x' }), { status: 202, applied })
  t.match(
    await strict('POST', '/1.0/load_balancers', { name: 'x' }),
    { status: 501, applied },
    'another document has its parameters',
  )
  t.match(
    await strict('GET', '/1.0/servers?nested=all', undefined, 'handling=lenient, handling=strict'),
    { status: 200, applied: undefined },
    'the first one counts',
  )
})

t.test('a slash that is repeated does not matter', async (t) => {
  for (const path of ['//1.0/servers', '/1.0//servers', '//1.0//servers//'])
    t.match(await api.call('GET', path), { status: 200, body: [] }, path)
})

t.test('a final slash does not matter', async (t) => {
  t.match(await api.call('GET', '/1.0/servers/'), { status: 200 })
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

t.test('a method that a path does not have is 405 with the methods that it has', async (t) => {
  for (const [method, url, allow] of [
    ['PATCH', '/1.0/servers/srv-zzzzz', 'DELETE, GET, HEAD, PUT'],
    ['DELETE', '/1.0/cloud_ips', 'GET, HEAD, POST'],
    ['GET', '/1.0/cloud_ips/cip-zzzzz/map', 'POST'],
    ['POST', '/1.0/account?x', 'GET, HEAD, PUT'],
    ['PUT', '/1.0/zones/zon-aaaa1/', 'GET, HEAD'],
  ] as const) {
    const { status, headers, body } = await api.call(method, url)
    t.equal(status, 405, url)
    t.equal(headers['allow'], allow, url)
    t.match(body, { error_name: 'method_not_allowed', errors: [`${method} is not one of ${allow}`] })
  }
  t.equal(
    (await api.server.inject({ method: 'HEAD', url: '/1.0/servers', headers: { authorization } })).statusCode,
    200,
  )
})

t.test('a path of an id that is too long is 404, and one that cannot be decoded 400', async (t) => {
  t.match(await send('GET', '/1.0/servers/%zz'), { status: 400, body: { error_name: 'bad_request', errors: [/./] } })
  t.match(await send('GET', `/1.0/servers/srv-${'a'.repeat(2000)}`), {
    status: 404,
    body: { error_name: 'resource_not_found', errors: [/./] },
  })
})

t.test('a path that does not exist is 404, at the top, below a resource and below a member', async (t) => {
  for (const url of [
    '/',
    '/1.0',
    '/1.0/nothing',
    '/2.0/servers',
    '/1.0/servers/srv-aaaaa/nothing',
    '/1.0/servers/a/b?c=d',
  ]) {
    t.match(
      await send('GET', url),
      { status: 404, body: { error_name: 'resource_not_found', errors: [`there is no ${url.split('?', 1)[0]!}`] } },
      url,
    )
  }
})

t.test('U+0000, which PostgreSQL cannot store, is refused wherever it can be written', async (t) => {
  const [{ id: server }, { id: cloudIp }, { id: group }] = [
    await create('servers', { image: 'img-deb12' }),
    await create('cloud_ips', {}),
    await create('server_groups', {}),
  ]
  for (const [method, path, body] of [
    ['POST', 'servers', { image: 'img-deb12', name: 'a\0' }],
    ['POST', 'servers', { image: '\0' }],
    ['POST', 'servers', { image: 'img-deb12', zone: '\0' }],
    ['POST', 'servers', { image: 'img-deb12', cloud_ip: '\0' }],
    ['POST', 'servers', { image: 'img-deb12', server_groups: ['\0'] }],
    ['PUT', `servers/${server}`, { name: '\0' }],
    ['PUT', `cloud_ips/${cloudIp}`, { name: '\0' }],
    ['POST', `cloud_ips/${cloudIp}/map`, { destination: 'srv-\0' }],
    ['POST', 'server_groups', { description: '\0' }],
    ['POST', `server_groups/${group}/add_servers`, { servers: [{ server: '\0' }] }],
    ['POST', `server_groups/${group}/move_servers`, { servers: [], destination: '\0' }],
  ] as const) {
    t.match(
      await api.call(method, `/1.0/${path}`, body),
      {
        status: 422,
        body: { error_name: 'unprocessable_entity', errors: [/^[a-z_.0]+ must not contain the character U\+0000/] },
      },
      `${method} ${path} ${JSON.stringify(body)}`,
    )
  }
  for (const path of ['servers/%00', 'images/%00', 'zones/%00', 'users/%00', 'interfaces/%00']) {
    t.match(
      await api.call('GET', `/1.0/${path}`),
      { status: 404, body: { error_name: 'resource_not_found', errors: [`there is no /1.0/${path}`] } },
      path,
    )
  }
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
        if (status === 422) refusals++
        for (const text of (body as { errors?: readonly string[] }).errors ?? [])
          t.notMatch(text, NO_SENTENCE, `${method} ${path} ${JSON.stringify(value).slice(0, 40)}`)
      }
    }
  }
  t.ok(refusals > 300, String(refusals))
})

t.test('an empty id is refused as empty', async (t) => {
  const {
    body: { id },
  } = (await api.call('POST', '/1.0/server_groups', {})) as { body: { id: string } }
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

t.test('the OpenAPI document has every route of the API, and its own page', async (t) => {
  const { body } = (await send('GET', '/1.0/openapi.json')) as {
    body: { openapi: string; paths: Record<string, Record<string, object>> }
  }
  t.equal(body.openapi, '3.1.0')
  for (const [method, path] of [...MEMBERS, ['POST', 'servers'], ['GET', 'accounts'], ['GET', 'user']] as const)
    t.ok(body.paths[`/1.0/${path.replace('ID', '{id}')}`]?.[method.toLowerCase()], `${method} ${path}`)
  t.ok(body.paths['/token']?.['post'])
  t.equal((await api.server.inject('/docs/')).statusCode, 200)
})

t.test('the OpenAPI document has errors, account_id, both types of a token request, and optional bodies', async (t) => {
  const { info, servers, security, paths, components } = await readDocument<{
    info: object
    servers: object
    security: object
    paths: Record<string, Record<string, DocumentedOperation>>
    components: { schemas: object; securitySchemes: object }
  }>(api.server)
  t.match(info, { version: '1.0.0beta' })
  t.strictSame(servers, [{ url: '/' }])
  t.strictSame(security, [{ oauth2: ['infrastructure'] }, { token: [] }])
  t.match(components.securitySchemes, { oauth2: { flows: { clientCredentials: { tokenUrl: '/token' } } } })
  t.match(components.schemas, { Error: { required: ['error_name', 'errors'] } })
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ name: `${method} ${path}`, ...operation })),
  )
  for (const { name, responses } of operations)
    t.match(responses['default'], { content: { 'application/json': { schema: { title: 'Error' } } } }, name)
  const withAccount = operations
    .filter(({ parameters = [] }) =>
      parameters.some((parameter) => parameter.in === 'query' && parameter.name === 'account_id'),
    )
    .map(({ name }) => name)
  t.strictSame(
    withAccount,
    operations
      .map(({ name }) => name)
      .filter((name) => name.includes(' /1.0/') && !name.includes('/1.0/user/collaborations')),
  )
  t.strictSame(Object.keys(paths['/token']!['post']!.requestBody!.content), [
    'application/json',
    'application/x-www-form-urlencoded',
  ])
  t.strictSame(
    [paths['/1.0/servers'], paths['/1.0/cloud_ips']].map((path) => path!['post']!.requestBody!.required),
    [true, false],
  )
})

t.test('every operation of the OpenAPI document has an id of its own, a summary and a description', async (t) => {
  const { paths } = (await send('GET', '/1.0/openapi.json')).body as {
    paths: Record<string, Record<string, DocumentedOperation>>
  }
  const operations = Object.values(paths).flatMap((methods) => Object.values(methods))
  for (const { operationId = '', summary = '', description = '' } of operations) {
    t.match(operationId, /^[a-z]+([A-Z][a-z]+)+$/, 'a name of a method')
    t.ok(summary !== '' && description.endsWith('.'), operationId)
  }
  t.equal(new Set(operations.map(({ operationId }) => operationId)).size, operations.length)
})

t.test('an unexpected error is 500 without details', async (t) => {
  await api.database.pool.query('alter table zones rename to zones_of_before')
  t.strictSame((await send('GET', '/1.0/zones')).body, {
    error_name: 'internal_server_error',
    errors: ['unexpected error'],
  })
  t.equal((await send('GET', '/1.0/zones')).status, 500)
  await api.database.pool.query('alter table zones_of_before rename to zones')
})
