/** Waiting for states: what ends a wait, who may wait, and how many. */
import { once } from 'node:events'
import { Socket, type AddressInfo } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import t from 'tap'
import { moveServer, type ServerTransition } from '../../src/imds-api/changes/servers.ts'
import { ALL_ROWS } from '../../src/imds-api/model/resources.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { Waits } from '../../src/imds-api/resources/kit/waits.ts'
import { CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const api = await anApi(t)
const { db } = api.database
await api.server.listen({ host: '127.0.0.1', port: 0 })
const baseUrl = `http://127.0.0.1:${(api.server.server.address() as AddressInfo).port}`
const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`

type Account = keyof typeof CLIENT_OF
const wait = (path: string, query: string, account: Account = ONE) =>
  api.call('GET', `/1.0/${path}/wait?${query}`, undefined, account)
async function idOf(answer: Promise<{ readonly body: unknown }>): Promise<string> {
  return ((await answer).body as { id: string }).id
}
const aServer = (account: Account = ONE) => idOf(api.call('POST', '/1.0/servers', { image: 'img-deb12' }, account))
const move = (id: string, transition: ServerTransition) => inTransaction(db, (tx) => moveServer(tx, id, transition))
const waiting = (count: number) => until(() => api.waits.count === count, `${count} requests to wait`)

t.test('a state that a resource has is reached at once, with the ETag of its GET', async (t) => {
  await aServer()
  await api.call('POST', '/1.0/cloud_ips')
  await api.call('POST', '/1.0/collaborations', { email: 'new@example.com', role: 'admin' })
  const waited = ALL_ROWS.flatMap(({ path, table, states }) => (states === undefined ? [] : (path ?? table!))).filter(
    (collection) => api.server.hasRoute({ method: 'GET', url: `/1.0/${collection}/:id/wait` }),
  )
  t.ok(waited.includes('servers') && waited.length > 3, waited.join())
  for (const collection of waited) {
    const { body: all } = await api.call('GET', `/1.0/${collection}`)
    const { id, status } = (all as { id: string; status: string }[])[0]!
    const path = `${collection}/${id}`
    const { status: code, headers, body } = await wait(path, `status=${status}&timeout=1`)
    const get = await api.call('GET', `/1.0/${path}`)
    t.strictSame([code, headers['etag'], body], [200, get.headers['etag'], get.body], path)
    t.match(get.headers['etag'], /^"/)
  }
})

t.test('a change that leads to the state ends the waits for it, and no others', async (t) => {
  const [id, other] = [await aServer(), await aServer()]
  const waits = [1, 2, 3].map(() => wait(`servers/${id}`, 'status=active'))
  const inactive = wait(`servers/${id}`, 'status=inactive')
  const ofOther = wait(`servers/${other}`, 'status=active')
  await waiting(5)
  await move(id, 'publish')
  for (const one of waits) t.match(await one, { status: 200, body: { id, status: 'active' } })
  t.equal(api.waits.count, 2)
  await move(id, 'stop')
  t.match(await inactive, { status: 200, body: { status: 'inactive' } })
  await move(other, 'publish')
  t.match(await ofOther, { status: 200, body: { id: other } })
  const ip = await idOf(api.call('POST', '/1.0/cloud_ips'))
  const mapped = wait(`cloud_ips/${ip}`, 'status=mapped')
  const image = wait('images/debian-12', 'status=deprecated')
  await waiting(2)
  await api.call('POST', `/1.0/cloud_ips/${ip}/map`, { destination: other })
  t.match(await mapped, { status: 200, body: { id: ip, server: { id: other } } })
  await sql`update images set status = 'deprecated' where id = 'img-deb12'`.execute(db)
  t.match(await image, { status: 200, body: { id: 'img-deb12' } }, 'an image of the region, by its handle')
  await sql`update images set status = 'available' where id = 'img-deb12'`.execute(db)
})

t.test('a change after the first read of a request, and before it waits, is not missed', async (t) => {
  const socket = new Socket()
  const share = { leave: () => undefined, again: () => Promise.resolve(() => undefined) }
  const accounts = { one: ONE, check: () => Promise.resolve() }
  const request = { caller: { id: 'cli-any01' }, accounts, share, raw: { socket } }
  const results = ['the change', undefined, 'the change, of which a notification came while it was read']
  const waits = new Waits(60_000)
  const read = () => {
    waits.wake('srv-any01')
    return Promise.resolve(results.shift())
  }
  const wait = () => waits.until(request as unknown as FastifyRequest, { name: 'srv-any01', seconds: 60 }, read)
  t.match(await wait(), 'the change')
  t.match(await wait(), 'the change, of which')
  socket.destroy()
  await once(socket, 'close')
  results.push('nobody reads it')
  t.equal(await wait(), undefined, 'a client that has gone before')
  t.strictSame([waits.count, results.length], [0, 1])
})

t.test('a state that cannot follow is refused (409) with the present one, before and during the wait', async (t) => {
  const id = await aServer()
  t.match(await wait(`servers/${id}`, 'status=unavailable'), {
    status: 409,
    body: { errors: [`${id} is creating: it cannot become unavailable`] },
  })
  const active = wait(`servers/${id}`, 'status=active')
  await waiting(1)
  await move(id, 'failCreate')
  const failed = { status: 409, body: { errors: [`${id} is failed: it cannot become active`] } }
  t.match(await active, failed)
  t.match(await wait(`servers/${id}`, 'status=active'), failed)
})

t.test('what is deleted while a request waits ends it: 409 for a server, 404 for a cloud IP', async (t) => {
  const id = await aServer()
  await move(id, 'publish')
  const ip = await idOf(api.call('POST', '/1.0/cloud_ips'))
  const [inactive, mapped] = [wait(`servers/${id}`, 'status=inactive'), wait(`cloud_ips/${ip}`, 'status=mapped')]
  const deleted = wait(`servers/${id}`, 'status=deleted')
  await waiting(3)
  await api.call('DELETE', `/1.0/cloud_ips/${ip}`)
  t.match(await mapped, { status: 404, body: { errors: [`the cloud IP ${ip} does not exist`] } })
  await move(id, 'delete')
  t.match(await inactive, { status: 409, body: { errors: [/ is deleting: /] } })
  await move(id, 'remove')
  t.match(await deleted, { status: 200, body: { status: 'deleted' } })
})

t.test('at the timeout a wait ends with 408, which names the present state', async (t) => {
  const id = await aServer()
  t.match(await wait(`servers/${id}`, 'status=active&timeout=1'), {
    status: 408,
    body: { error_name: 'request_timeout', errors: [`${id} is still creating after 1 s: ask again to wait longer`] },
  })
  t.equal(api.waits.count, 0)
})

t.test('wrong parameters are refused (400), with the possible states', async (t) => {
  const id = await aServer()
  const states = 'status must be one of creating, active, inactive, deleting, deleted, failed, unavailable'
  for (const query of ['', 'status=', 'status=running', 'status=active&status=failed'])
    t.match(await wait(`servers/${id}`, query), { status: 400, body: { errors: [states] } }, query)
  t.match(await wait(`servers/${id}`, 'status=active&timeout=1&timeout=2'), {
    status: 400,
    body: { errors: ['timeout must be given once'] },
  })
  for (const timeout of ['0', '121', '1.5', 'x'])
    t.match(
      await wait(`servers/${id}`, `status=active&timeout=${timeout}`),
      { status: 400, body: { errors: ['timeout must be an integer from 1 to 120'] } },
      timeout,
    )
})

t.test('what an account does not see, it cannot wait for (404)', async (t) => {
  const id = await aServer(TWO)
  for (const path of [`servers/${id}`, 'servers/srv-zzzzz', 'images/img-zzzzz'])
    t.match(await wait(path, `status=${path.startsWith('i') ? 'available' : 'active'}`), { status: 404 }, path)
  const other = wait(`servers/${id}`, 'status=active', TWO)
  await waiting(1)
  await move(id, 'publish')
  t.match(await other, { status: 200 })
})

t.test('a wait ends with 401 once its token is revoked', async (t) => {
  const id = await aServer()
  const revoke = (to: 'now()' | 'null') =>
    sql`update api_clients set revoked_at = ${sql.raw(to)} where id = ${CLIENT_OF[TWO]}`.execute(db)
  const server = await aServer(TWO)
  const [quiet, changed] = [
    wait(`servers/${server}`, 'status=inactive', TWO),
    wait(`servers/${server}`, 'status=active', TWO),
  ]
  const own = wait(`servers/${id}`, 'status=active')
  await waiting(3)
  await revoke('now()')
  api.auth.tokens.clearCache()
  await move(server, 'publish')
  t.match(await changed, { status: 401 }, 'its right is checked before the state is read')
  t.match(await quiet, { status: 401 }, 'and regularly')
  t.equal(api.waits.count, 1, 'that of another client goes on')
  await revoke('null')
  api.auth.tokens.clearCache()
  await move(id, 'publish')
  t.match(await own, { status: 200 })
})

t.test('a client that goes away leaves its place at once', async (t) => {
  const id = await aServer()
  const aborts = [new AbortController(), new AbortController()] as const
  const sent = aborts.map(({ signal }) =>
    fetch(`${baseUrl}/1.0/servers/${id}/wait?status=active`, { signal, headers: { authorization } }),
  )
  await waiting(2)
  aborts[0].abort()
  await t.rejects(sent[0]!)
  await waiting(1)
  await move(id, 'publish')
  t.equal((await sent[1]!).status, 200)
})

t.test('waits end with 408 when the process stops, so their clients ask again', async (t) => {
  const id = await aServer()
  const waits = wait(`servers/${id}`, 'status=active')
  await waiting(1)
  await api.server.close()
  t.match(await waits, {
    status: 408,
    body: { errors: [`${id} is still creating after 0 s: ask again to wait longer`] },
  })
})
