/**
 * A change with an Idempotency-Key is made once, wherever the connection to the client or to PostgreSQL is cut, and
 * whichever process is asked or killed.
 */
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sql } from 'kysely'
import pg from 'pg'
import t from 'tap'
import { openDatabase } from '../../src/imds-api/database/open.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { anApi, countOfLockWaits, serveDatabase, startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { without } from '../support/packages.ts'

const api = await anApi(t)
const { db } = api.database
const connection = api.database.pool.options
await db.updateTable('accounts').set({ cloud_ips_limit: 10_000, ram_limit: 1_000_000_000 }).execute()
await db.updateTable('hypervisors').set({ ram: 1_000_000_000 }).execute()
const token = await api.token(CLIENT_OF[ONE])

/**
 * A proxy to PostgreSQL, which destroys both connections instead of passing on the nth answer of a transaction. The
 * answer to `begin` is the first one. Answers before it are not counted: how many there are depends on what a cache has
 * (the access token, the domain of the region), and nothing is changed before it.
 */
async function startProxy(): Promise<{ readonly directory: string; cutAt: (n: number) => void; count: () => number }> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-proxy-'))
  let answers = 0
  let cut = Infinity
  const open = new Set<Socket>()
  const proxy = createServer((near) => {
    const far = connect(join(connection.host!, `.s.PGSQL.${String(connection.port ?? 5432)}`))
    far.on('data', (answer) => {
      if (answers > 0 || answer.includes('BEGIN')) answers++
      if (answers !== cut) near.write(answer)
      else for (const socket of [near, far]) socket.destroy()
    })
    near.pipe(far)
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      open.add(socket)
      socket.on('error', () => {
        other.destroy()
      })
      socket.on('close', () => {
        open.delete(socket)
        other.destroy()
      })
    }
  })
  proxy.listen(join(directory, `.s.PGSQL.${String(connection.port ?? 5432)}`))
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.close()
    for (const socket of open) socket.destroy()
    rmSync(directory, { recursive: true, force: true })
  })
  return {
    directory,
    cutAt: (n) => {
      ;[answers, cut] = [0, n]
    },
    count: () => answers,
  }
}

t.test('the connection to PostgreSQL is cut after each step, and the repeat creates nothing twice', async (t) => {
  const proxy = await startProxy()
  const url = `postgresql://${connection.user!}@/${connection.database!}?host=${proxy.directory}&port=${String(connection.port ?? 5432)}`
  const database = await openDatabase({ kind: 'server', url, passwordFile: undefined }, false, () => {
    /* idle connections break too */
  })
  t.teardown(() => database.close())
  const { server } = await serveDatabase(t, database)
  const send = async (key: string) => {
    const { statusCode, headers } = await server.inject({
      method: 'POST',
      url: '/1.0/servers',
      headers: { authorization: `Bearer ${token}`, 'idempotency-key': key },
      payload: { image: 'img-deb12', cloud_ip: true, name: key },
    })
    return { status: statusCode, replayed: headers['idempotent-replayed'] === 'true' }
  }
  t.match(await send('warm'), { status: 202 })
  const outcomes: { readonly status: number; readonly replayed: boolean }[] = []
  let isCut = true
  for (let step = 1; isCut; step++) {
    const key = `step-${String(step)}`
    proxy.cutAt(step)
    const { status } = await send(key)
    isCut = proxy.count() >= step
    t.equal(status, isCut ? 503 : 202, `step ${String(step)}`)
    proxy.cutAt(Infinity)
    let again = await send(key)
    while (again.status === 409) again = await send(key) // PostgreSQL has not noticed the loss yet
    t.equal(again.status, 202)
    if (isCut) outcomes.push({ status, replayed: again.replayed })
  }
  t.ok(outcomes.length > 10, `${String(outcomes.length)} steps`)
  t.strictSame(
    outcomes.map(({ replayed }, i) => replayed && i < outcomes.length - 1),
    outcomes.map(() => false),
    'only the last step is after the commit',
  )
  t.strictSame(outcomes.at(-1), { status: 503, replayed: true })
  const made = await db.selectFrom('servers').select('name').execute()
  t.equal(made.length, outcomes.length + 2, 'one for each key')
  t.equal(new Set(made.map(({ name }) => name)).size, made.length)
  t.equal((await db.selectFrom('cloud_ips').select('id').execute()).length, made.length)
})

t.test('the connection of the client is cut after each step, and the repeat creates nothing twice', async (t) => {
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = api.server.server.address() as AddressInfo
  const payload = JSON.stringify({ name: 'cut' })
  const request = (key: string) =>
    [
      'POST /1.0/cloud_ips HTTP/1.1',
      'Host: localhost',
      `Authorization: Bearer ${token}`,
      'Content-Type: application/json',
      `Idempotency-Key: "${key}"`,
      `Content-Length: ${String(payload.length)}`,
      '',
      payload,
    ].join('\r\n')
  const repeat = async (key: string) => {
    for (;;) {
      const { statusCode, headers } = await api.server.inject({
        method: 'POST',
        url: '/1.0/cloud_ips',
        headers: { authorization: `Bearer ${token}`, 'idempotency-key': key, 'content-type': 'application/json' },
        payload,
      })
      if (statusCode !== 409) return { statusCode, replayed: headers['idempotent-replayed'] === 'true' }
    }
  }
  const countOf = async () => (await db.selectFrom('cloud_ips').select('id').where('name', '=', 'cut').execute()).length
  const length = request('x-0').length
  let keys = 0
  for (const sent of [20, length - payload.length, length - 1, length]) {
    const key = `x-${String(keys++)}`
    const socket = connect(port, '127.0.0.1')
    await new Promise<void>((resolve) =>
      socket.write(request(key).slice(0, sent), () => {
        resolve()
      }),
    )
    socket.destroy()
    t.match(await repeat(key), { statusCode: 201 })
  }
  for (const when of ['while the change waits', 'after the first bytes of the response']) {
    const key = `x-${String(keys++)}`
    const blocker = await db.startTransaction().execute()
    await sql`select from accounts where id = ${ONE} for update`.execute(blocker)
    const socket = connect(port, '127.0.0.1')
    socket.write(request(key))
    await until(async () => (await countOfLockWaits(api.database.pool)) > 0, 'the change to wait')
    if (when === 'while the change waits') socket.destroy()
    await blocker.commit().execute()
    if (!socket.destroyed) {
      await once(socket, 'data')
      socket.destroy()
    }
    t.strictSame(await repeat(key), { statusCode: 201, replayed: true }, when)
  }
  await until(() => !api.accounts.isBusy, 'all changes to end')
  t.equal(await countOf(), keys)
})

t.test('two processes', { skip: without('postgres') }, async (t) => {
  const postgres = await startPostgres(t)
  const first = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url })
  const second = await startProcess(t, { ...first.env, IMDS_API_LISTEN: '127.0.0.1:0' })
  const bearer = await first.token(CLIENT_OF[ONE])
  const send = async (api: typeof first, key: string) => {
    const response = await fetch(`${api.baseUrl}/1.0/server_groups`, {
      method: 'POST',
      headers: { authorization: `Bearer ${bearer}`, 'idempotency-key': key, 'content-type': 'application/json' },
      body: JSON.stringify({ name: key }),
    })
    const { id } = (await response.json()) as { id: string }
    return { status: response.status, id, replayed: response.headers.has('idempotent-replayed') }
  }
  const untilDone = async (api: typeof first, key: string) => {
    let answer = await send(api, key)
    while (answer.status === 409) answer = await send(api, key)
    return answer
  }
  const names = async () => {
    const response = await fetch(`${second.baseUrl}/1.0/server_groups`, {
      headers: { authorization: `Bearer ${bearer}` },
    })
    const groups = (await response.json()) as { name: string }[]
    return groups
      .map(({ name }) => name)
      .filter((name) => /^(?:both|killed)/.test(name))
      .sort()
  }
  const keysOf = (prefix: string) => Array.from({ length: 20 }, (_, i) => `${prefix}-${String(i + 10)}`)

  await t.test(
    'of which one has a request in flight: its repeat to the other gets 409, and then the response',
    async (t) => {
      const blocker = new pg.Client(postgres.url)
      await blocker.connect()
      t.teardown(() => blocker.end())
      await blocker.query('begin')
      await blocker.query('select from accounts where id = $1 for update', [ONE])
      const inFlight = send(first, 'slow')
      await until(async () => (await countOfLockWaits(blocker)) !== 0, 'the change to wait')
      t.equal((await send(second, 'slow')).status, 409)
      await blocker.query('commit')
      const { status, id } = await inFlight
      t.equal(status, 202)
      t.match(await untilDone(second, 'slow'), { status: 202, id, replayed: true })
    },
  )

  await t.test('that get one key at the same time make the change once, and both have its response', async (t) => {
    for (const key of keysOf('both')) {
      const answers = await Promise.all([first, second, first, second].map((api) => untilDone(api, key)))
      t.equal(new Set(answers.map(({ id }) => id)).size, 1)
      t.equal(answers.filter(({ status, replayed }) => status === 202 && !replayed).length, 1)
    }
    t.strictSame(await names(), keysOf('both'))
  })

  await t.test('of which one is killed during changes: repeats to the other make each once', async (t) => {
    const keys = keysOf('killed')
    const sent = keys.map((key) => send(first, key).catch(() => undefined))
    await Promise.race(sent)
    first.process.kill('SIGKILL')
    await once(first.process, 'exit')
    const answered = await Promise.all(sent)
    const repeated = await Promise.all(keys.map((key) => untilDone(second, key)))
    for (const [i, answer] of answered.entries())
      if (answer !== undefined) t.match(repeated[i], { id: answer.id, replayed: true })
    t.ok(answered.includes(undefined), 'some were not answered')
    t.strictSame(await names(), [...keysOf('both'), ...keys])
  })
})
