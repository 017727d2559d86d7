/** imds-api under load: the mix of requests of many clients, connections, bodies, and a small pool. */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { readShare } from '../../src/imds-api/http/read-share.ts'
import { CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { metric } from '../support/load/api-load.ts'
import { failed, runMixed } from '../support/load/mixed.ts'
import { lockWaits, logLockWaits } from '../support/load/lock-waits.ts'
import { formatRequest, Wire } from '../support/load/wire.ts'
import { openDatabaseOf, startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

/** Leaves 96 descriptors for connections of clients: 48 of an address. */
const DESCRIPTORS = 192 + Math.ceil((96 * 8) / 5)
const [IN_ALL, OF_ADDRESS] = [96, 48]
const MIB = 2 ** 20
/** Of an account, with 16 connections to the database. */
const READS = readShare(16)
const CLIENTS = 20

const api = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded' }, undefined, 'inherit', [
  'prlimit',
  `--nofile=${DESCRIPTORS}`,
])
const database = await openDatabaseOf(api.env)
t.teardown(() => database.close())
const port = Number(new URL(api.baseUrl).port)
const tokens = [await api.token(CLIENT_OF[ONE]), await api.token(CLIENT_OF[TWO])] as const

/** Gives the accounts room for the servers and cloud IPs of many clients. */
async function makeRoom({ pool }: Pick<typeof database, 'pool'>): Promise<void> {
  await pool.query('update accounts set ram_limit = 65536, cloud_ips_limit = 50')
  await logLockWaits(pool)
}

/** Holds a connection that has sent the beginning of a request, or nothing. */
async function hold(t: Test, localAddress: string, bytes: string, at = port): Promise<Socket> {
  const socket = connect({ port: at, host: '127.0.0.1', localAddress })
  t.teardown(() => socket.destroy())
  socket.on('error', () => undefined).resume()
  await once(socket, 'connect')
  socket.write(bytes)
  return socket
}

/** Sends requests of TWO, one after another on one connection. Returns their statuses. */
async function served(t: Test, { port: at, token } = { port, token: tokens[1] }): Promise<readonly number[]> {
  const wire = await Wire.open(at, '127.0.0.9')
  t.teardown(() => wire.end())
  const statuses: number[] = []
  for (const [method, path, body] of [
    ['GET', '/1.0/servers'],
    ['POST', '/1.0/config_maps', { data: { a: 1 } }],
    ['GET', '/1.0/zones'],
  ] as const)
    statuses.push((await wire.ask(formatRequest(token, method, path, body))).status)
  return statuses
}
const ALL_SERVED = [200, 200, 200]

t.test('many clients that read, create, map and delete get no error, and none waits for a lock for 1 s', async (t) => {
  await makeRoom(database)
  const { answers } = await runMixed(port, tokens, CLIENTS, 1, () => false)
  t.strictSame(failed(answers), {})
  t.equal(answers.get('POST servers 202'), CLIENTS)
  t.strictSame(lockWaits(api.env['IMDS_API_STATE_DIR']!), [])
})

t.test('with one database connection, no request needs two: some reads are shed, nothing else fails', async (t) => {
  const single = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded', IMDS_API_DATABASE_CONNECTIONS: '1' })
  const state = await openDatabaseOf(single.env)
  t.teardown(() => state.close())
  await makeRoom(state)
  const both = [await single.token(CLIENT_OF[ONE]), await single.token(CLIENT_OF[TWO])]
  const { answers } = await runMixed(Number(new URL(single.baseUrl).port), both, 8, 1, () => false)
  t.strictSame(
    Object.keys(failed(answers)).filter((name) => !/^GET \w+ 503$/.test(name)),
    [],
  )
  t.strictSame(
    single.log.filter(({ msg }) => msg.startsWith('the database is unreachable')),
    [],
    'none has waited for a connection in vain',
  )
  t.equal((await fetch(`${single.operatorUrl}/readyz`)).status, 200)
  t.strictSame(lockWaits(single.env['IMDS_API_STATE_DIR']!), [])
})

t.test('idle connections of one address and of many take no room of clients that send requests', async (t) => {
  const closedBefore = await metric(api, 'imds_api_closed_connections_total{reason="all"}')
  for (let i = 0; i < 2 * OF_ADDRESS; i++) await hold(t, '127.0.2.1', '')
  t.strictSame(await served(t), ALL_SERVED)
  t.ok((await metric(api, 'imds_api_closed_connections_total{reason="address"}')) >= OF_ADDRESS)
  for (let i = 0; i < 2 * IN_ALL; i++) await hold(t, `127.0.2.${2 + (i % 8)}`, '')
  t.strictSame(await served(t), ALL_SERVED)
  t.ok((await metric(api, 'imds_api_closed_connections_total{reason="all"}')) - closedBefore >= IN_ALL)
  t.equal((await fetch(`${api.operatorUrl}/readyz`)).status, 200)
})

t.test(
  'idle connections without credentials close each other, not the older ones of clients that signed in',
  async (t) => {
    const wire = await Wire.open(port, '127.0.0.9')
    t.teardown(() => wire.end())
    const read = formatRequest(tokens[1], 'GET', '/1.0/zones')
    t.equal((await wire.ask(read)).status, 200)
    const closed = () => metric(api, 'imds_api_closed_connections_total{reason="all"}')
    const before = await closed()
    for (let i = 0; i < 2 * IN_ALL; i++) await hold(t, `127.0.3.${1 + (i % 8)}`, '')
    await until(async () => (await closed()) - before >= IN_ALL, 'as many to be closed')
    t.equal((await wire.ask(read)).status, 200, 'on the oldest connection of all')
  },
)

t.test('one address without credentials that pipelines requests lets others be served between', async (t) => {
  const [invented, count] = ['x'.repeat(43), 16]
  const wire = await Wire.open(port, '127.0.0.9')
  t.teardown(() => wire.end())
  for (const request of [
    'GET /1.0/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n',
    'GET /1.0/serverz HTTP/1.1\r\nHost: a\r\n\r\n',
    `GET /1.0/zones HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${invented}\r\n\r\n`,
    `GET /oidc/acc-none1/jwks.json HTTP/1.1\r\nHost: a\r\n\r\n`,
  ]) {
    let answered = 0
    const flood = await Promise.all(Array.from({ length: OF_ADDRESS - 4 }, () => hold(t, '127.0.4.1', '')))
    for (const socket of flood)
      socket.on('data', (part: Buffer) => {
        answered += part.toString('latin1').split('HTTP/1.1 ').length - 1
      })
    for (const socket of flood) socket.write(request.repeat(count))
    t.equal((await wire.ask(formatRequest(tokens[1], 'GET', '/1.0/zones'))).status, 200)
    const [then, all] = [answered, flood.length * count]
    t.ok(then < all, `${then} of ${all} before it: ${request.slice(0, 30)}`)
    await until(() => answered === all, 'the flood to be answered')
    for (const socket of flood) socket.destroy()
  }
})

t.test('bodies that arrive slowly, and huge ones, which are 413, keep no other client waiting', async (t) => {
  const head = (length: number) =>
    `PUT /1.0/config_maps/cfg-none1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${tokens[0]}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${length}\r\n\r\n`
  for (let i = 0; i < OF_ADDRESS; i++) await hold(t, '127.0.2.1', head(3 * MIB) + ' '.repeat(MIB / 16))
  t.strictSame(await served(t), ALL_SERVED)
  for (const [length, sent] of [
    [7 * MIB + 1, 7 * MIB + 1],
    [20 * MIB, 0], // it is not read
  ] as const) {
    const wire = await Wire.open(port, '127.0.2.2')
    t.equal((await wire.ask(head(length) + ' '.repeat(sent))).status, 413)
    wire.end()
  }
  t.strictSame(await served(t), ALL_SERVED)
})

t.test('of an account that sends endless reads the excess gets 503; it is counted, others are served', async (t) => {
  const api = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded' })
  const database = await openDatabaseOf(api.env)
  t.teardown(() => database.close())
  const port = Number(new URL(api.baseUrl).port)
  const tokens = [await api.token(CLIENT_OF[ONE]), await api.token(CLIENT_OF[TWO])] as const
  const holder = await database.pool.connect()
  await holder.query('begin')
  await holder.query('lock table database_servers')
  const read = formatRequest(tokens[0], 'GET', '/1.0/database_servers')
  const most = READS.atOnce + READS.maxWaiting
  let text = ''
  const wires = await Promise.all(
    Array.from({ length: most + 40 }, (_, i) => hold(t, `127.0.2.${1 + (i % 6)}`, '', port)),
  )
  for (const wire of wires) {
    wire.setEncoding('utf8').on('data', (part: string) => {
      text += part
    })
    wire.write(read)
  }
  const shed = () => metric(api, 'imds_api_shed_requests_total{queue="reads"}')
  await until(async () => (await shed()) > 0, 'the excess to be refused')
  t.strictSame(await served(t, { port, token: tokens[1] }), ALL_SERVED)
  t.equal((await fetch(`${api.operatorUrl}/readyz`)).status, 200)
  await holder.query('commit')
  holder.release()
  const count = (pattern: RegExp) => text.match(pattern)?.length ?? 0
  const statuses = () => [count(/HTTP\/1\.1 200/g), count(/HTTP\/1\.1 503/g)] as const
  await until(() => statuses()[0] + statuses()[1] === wires.length, 'every request to be answered')
  const [answered, refused] = statuses()
  t.ok(answered > 0)
  t.equal(refused, await shed())
  t.equal(count(/^retry-after: 1\r/gm), refused)
  t.match(
    api.log.filter(({ msg }) => msg.startsWith('too many requests wait')),
    [{ level: 'warn', queue: 'reads', owner: ONE, requests: 1 }],
    'one warning for all of them',
  )
})
