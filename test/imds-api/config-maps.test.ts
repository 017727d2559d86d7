/** Config maps: their forms, and their data. */
import { once } from 'node:events'
import { connect, type AddressInfo, type Socket } from 'node:net'
import t from 'tap'
import { CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { aClient, missing } from '../support/programs/api-client.ts'
import { anApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

interface Body extends Record<string, unknown> {
  id: string
}

const api = await anApi(t)
const { call, list } = aClient<Body>(api)
const token = await api.token(CLIENT_OF[ONE])
/** Sends a body as it is, and returns that of the response as it is. */
const send = async (method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, text?: string) => {
  const { statusCode, headers, body } = await api.server.inject({
    method,
    url: `/1.0/${path}`,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    ...(text !== undefined && { payload: text }),
  })
  return { status: statusCode, type: headers['content-type'], text: body }
}

t.test('a config map in its full and collected form; every response is 200', async (t) => {
  const { status, body } = await call('POST', 'config_maps', { name: 'example.test', data: { setting: 45 } })
  t.equal(status, 200)
  t.match(body.id, /^cfg-[0-9a-z]{5}$/)
  t.match(api.audit.at(-1), { method: 'POST', route: '/1.0/config_maps', id: body.id, set: ['name', 'data'] })
  const collected = {
    id: body.id,
    resource_type: 'config_map',
    url: `${BASE_URL}/1.0/config_maps/${body.id}`,
    name: 'example.test',
  }
  const full = { ...collected, data: { setting: 45 } }
  t.strictSame(body, full)
  t.strictSame(await call('GET', `config_maps/${body.id}`), { status: 200, body: full })
  t.strictSame(await call('GET', 'config_maps'), { status: 200, body: [collected] }, 'a list has no data')
  t.strictSame(await call('PUT', `config_maps/${body.id}`, { name: 'b' }), {
    status: 200,
    body: { ...full, name: 'b' },
  })
  t.strictSame(
    await call('PUT', `config_maps/${body.id}`, { data: { other: [] } }),
    { status: 200, body: { ...full, name: 'b', data: { other: [] } } },
    'data replaces the whole map',
  )
  t.strictSame(await call('PUT', `config_maps/${body.id}`, {}), {
    status: 200,
    body: { ...full, name: 'b', data: { other: [] } },
  })
  t.strictSame(await call('DELETE', `config_maps/${body.id}`), {
    status: 200,
    body: { ...full, name: 'b', data: { other: [] } },
  })
  for (const method of ['GET', 'PUT', 'DELETE'] as const) {
    t.strictSame(
      await call(method, `config_maps/${body.id}`, method === 'PUT' ? {} : undefined),
      missing(`the config map ${body.id}`),
      method,
    )
  }
  t.strictSame((await call('GET', 'config_maps')).body, [])
  for (const name of [{}, { name: null }]) {
    const nameless = await call('POST', 'config_maps', { ...name, data: {} })
    t.match(nameless, { status: 200, body: { name: '', data: {} } })
    t.match(await call('PUT', `config_maps/${nameless.body.id}`, name), { status: 200, body: { name: '' } })
    await call('DELETE', `config_maps/${nameless.body.id}`)
  }
})

t.test('data comes back as JSON.parse reads it: doubles, keys in its order, any text', async (t) => {
  for (const data of [
    '{"z":1,"a":2,"10":3,"9":4}',
    '{"a":12345678901234567890,"b":1.0,"c":1e400,"d":-0,"e":0.1e-7}',
    '{"a":1,"a":2}',
    '{"a":"\\u0000","\\u0000":"\\ud800"}',
    '{"":"é€😀\\n\\"\\\\ "}',
    '{"__proto__":{"name":"x"},"constructor":{"prototype":{}},"data":{"data":"data"}}',
    '{"a":[null,true,false,[],{}]}',
    `{"a":${'['.repeat(98)}${']'.repeat(98)}}`,
    '{}',
  ]) {
    const created = await send('POST', 'config_maps', `{"__proto__": {"name": "evil"}, "data": ${data}, "more": 1}`)
    const { id, name } = JSON.parse(created.text) as { id: string; name: string }
    const text = `{"id":"${id}","resource_type":"config_map","url":"${BASE_URL}/1.0/config_maps/${id}","name":"","data":${JSON.stringify(JSON.parse(data))}}`
    t.equal(name, '')
    t.strictSame(created, { status: 200, type: 'application/json; charset=utf-8', text })
    t.strictSame(
      await send(
        'PUT',
        `config_maps/${id}`,
        `{"data":\n\t${data.replaceAll(/([,:])/g, '$1 ')} }`.replaceAll(/"[^"]*"/g, (string) =>
          string.replaceAll(/([,:]) /g, '$1'),
        ),
      ),
      created,
    )
    t.strictSame(await send('GET', `config_maps/${id}`), created)
    t.strictSame(await send('DELETE', `config_maps/${id}`), created)
  }
})

t.test(
  'data of 1,048,576 bytes is stored, also as escapes; a byte more is 422, a body above 3.06 MiB 413',
  async (t) => {
    const bodyOf = (bytes: number, character: string) =>
      `{"data":{"a":"${character.repeat(bytes - '{"a":""}'.length)}"}}`
    /** As clients send it that write ASCII only. */
    const escapesOf = (bytes: number) => bodyOf(bytes, 'x').replaceAll('xx', '\\u00e9')
    const stored = await send('POST', 'config_maps', escapesOf(1_048_576))
    t.equal(stored.status, 200)
    const { id, data } = JSON.parse(stored.text) as { id: string; data: object }
    t.equal(Buffer.byteLength(JSON.stringify(data)), 1_048_576)
    t.equal((await send('PUT', `config_maps/${id}`, bodyOf(1_048_576, 'b'))).status, 200)
    const { text: last } = await send('GET', `config_maps/${id}`)
    t.equal((JSON.parse(last) as { data: { a: string } }).data.a[0], 'b')
    const tooLong = {
      status: 422,
      text: '{"error_name":"unprocessable_entity","errors":["data must be at most 1048576 bytes; it is 1048577"]',
    }
    for (const [method, path] of [
      ['POST', 'config_maps'],
      ['PUT', `config_maps/${id}`],
    ] as const) {
      t.match(await send(method, path, bodyOf(1_048_577, 'a')), tooLong)
      t.match(await send(method, path, escapesOf(1_048_577)), tooLong)
      t.match(await send(method, path, `{"data":{}}${' '.repeat(3_211_264)}`), {
        status: 413,
        text: '{"error_name":"payload_too_large","errors":["the body must be at most 3211264 bytes"]',
      })
    }
    t.equal((await send('GET', `config_maps/${id}`)).text, last, 'a refusal changes nothing')
    t.match(
      await send('POST', 'cloud_ips', JSON.stringify({ name: 'x'.repeat(300_000) })),
      { status: 413 },
      'other routes keep their limit',
    )
    await send('DELETE', `config_maps/${id}`)
  },
)

t.test('more than 16 MiB of bodies of an account are 503, others are served; an end releases them', async (t) => {
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = api.server.server.address() as AddressInfo
  const received: Socket[] = []
  api.server.server.on('connection', (socket: Socket) => received.push(socket))
  const open = (bearer: string, length: number) => {
    const socket = connect(port, '127.0.0.1')
      .setEncoding('utf8')
      .on('error', () => undefined)
    socket.write(
      `POST /1.0/config_maps HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer ${bearer}\r\nContent-Length: ${length}\r\n\r\n`,
    )
    return socket
  }
  const text = Buffer.from(`{"data":{}${' '.repeat(3 << 20)}}`)
  const post = async (bearer: string) => {
    const socket = open(bearer, text.length)
    socket.write(text) // a client that ends its side gets no response
    return (await socket.toArray()).join('')
  }
  const unfinished = Array.from({ length: 5 }, () => {
    const length = 3 << 20
    const socket = open(token, length)
    t.teardown(() => socket.destroy())
    socket.write(Buffer.alloc(length - 1, ' '))
    return socket
  })
  await until(
    () => received.reduce((sum, { bytesRead }) => sum + bytesRead, 0) >= (15 << 20) - 5,
    'their bodies to arrive',
  )
  t.match(
    await post(token),
    /^HTTP\/1\.1 503[^]*\r\nretry-after: 1\r\n[^]*"error_name":"service_unavailable","errors":\["the bodies of your other requests are too long: together they may have 16777216 bytes; try again"\]/i,
  )
  t.match(await post(await api.token(CLIENT_OF[TWO])), /^HTTP\/1\.1 200/)
  for (const socket of unfinished) {
    socket.destroy()
    await once(socket, 'close')
  }
  await until(async () => (await post(token)).startsWith('HTTP/1.1 200'), 'the bytes to be released')
  for (const account of [ONE, TWO] as const)
    for (const { id } of await list('config_maps', account))
      await call('DELETE', `config_maps/${id}`, undefined, account)
})
