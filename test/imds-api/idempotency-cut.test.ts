/** A change with an Idempotency-Key is made once, wherever the connection to the client or to PostgreSQL is cut. */
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { join } from 'node:path'
import { sql } from 'kysely'
import t from 'tap'
import { openDatabase } from '../../src/imds-api/database/open.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { anApi, countOfLockWaits, openTransaction, serveDatabase } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { shortDirectory } from '../support/test-directory.ts'

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
  const directory = shortDirectory(t)
  let answers = 0
  let cut = Infinity
  const open = new Set<Socket>()
  const proxy = createServer((near) => {
    const far = connect(join(connection.host!, `.s.PGSQL.${connection.port ?? 5432}`))
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
      socket.on('error', () => other.destroy())
      socket.on('close', () => {
        open.delete(socket)
        other.destroy()
      })
    }
  })
  proxy.listen(join(directory, `.s.PGSQL.${connection.port ?? 5432}`))
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.close()
    for (const socket of open) socket.destroy()
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
  const url = `postgresql://${connection.user!}@/${connection.database!}?host=${proxy.directory}&port=${connection.port ?? 5432}`
  const database = await openDatabase({ url }, false, () => undefined)
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
    const key = `step-${step}`
    proxy.cutAt(step)
    const { status } = await send(key)
    isCut = proxy.count() >= step
    t.equal(status, isCut ? 503 : 202, `step ${step}`)
    proxy.cutAt(Infinity)
    let again = await send(key)
    while (again.status === 409) again = await send(key) // PostgreSQL has not noticed the loss yet
    t.equal(again.status, 202)
    if (isCut) outcomes.push({ status, replayed: again.replayed })
  }
  t.ok(outcomes.length > 10, `${outcomes.length} steps`)
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
      `Content-Length: ${payload.length}`,
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
    const key = `x-${keys++}`
    const socket = connect(port, '127.0.0.1')
    await new Promise<void>((resolve) => socket.write(request(key).slice(0, sent), () => resolve()))
    socket.destroy()
    t.match(await repeat(key), { statusCode: 201 })
  }
  for (const when of ['while the change waits', 'after the first bytes of the response']) {
    const key = `x-${keys++}`
    const blocker = await openTransaction(db)
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
  t.match(await repeat(`x-${keys++}`), { statusCode: 201 }, 'after all changes before it')
  t.equal(await countOf(), keys)
})
