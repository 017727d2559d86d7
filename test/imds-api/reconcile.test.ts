/**
 * `imds-api reconcile`: an empty store, one that differs from the database, and one of another database. The command runs
 * in the process of the test; docs/operations/imds-api.md has it as a process. restored.test.ts has restored databases.
 */
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { buildAnnouncement } from '../../src/imds-api/service/background.ts'
import { enqueueAgain, enqueueAllServers } from '../../src/imds-api/changes/rebuild.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { CommandFailure } from '../../src/runtime/exit-status.ts'
import { publishBatch } from '../../src/imds-api/publish/batch.ts'
import { openOwnRegion, type OwnStore } from '../../src/imds-api/publish/region-database.ts'
import { reconcile } from '../../src/imds-api/commands/reconcile.ts'
import type { ServiceParts } from '../../src/imds-api/service/service-parts.ts'
import type { Publisher } from '../../src/store/open.ts'
import { anApi } from '../support/programs/api.ts'
import { collectOutput } from '../support/programs/collected-output.ts'
import { rememberState } from '../support/redis/go-back.ts'
import { startRedis } from '../support/redis/redis.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { openTestStore } from '../support/test-store.ts'

const redis = await startRedis(t)
const settings = { url: redis.url, region: 'gb1' }

/** A region with servers whose store is empty. */
async function anUnpublished(t: Test, servers: number) {
  await redis.client.flushall()
  const api = await anApi(t, { store: settings })
  const { db, pool } = api.database
  await db.updateTable('accounts').set({ ram_limit: 65_536 }).execute()
  const store = await openTestStore(t, settings)
  const ids: string[] = []
  for (let n = 0; n < servers; n++) {
    const { body } = await api.call('POST', '/1.0/servers', { image: 'img-deb12', user_data: 'b25l' })
    ids.push((body as { id: string }).id)
  }
  const run = async (dryRun: boolean, signal = new AbortController().signal) => {
    const { output, text } = collectOutput(false)
    const parts = { config: { store: settings, database: { url: api.url } }, output }
    const status = await reconcile(parts, { dryRun }, signal).catch((error: unknown) => {
      if (!(error instanceof CommandFailure)) throw error
      text.stderr += error.message
      return error.status
    })
    return { status, ...text }
  }
  return {
    api,
    db,
    pool,
    store,
    ids,
    reconcile: (signal?: AbortSignal) => run(false, signal),
    dryRun: () => run(true),
  }
}

const listed = async (store: Publisher) => (await store.list()).map(({ id }) => id)

/** A record that no database knows. */
const foreign = (id: string, n: number) => ({
  ...{ schema: 1, revision: 1, id, fqdn: `${id}.example.com`, account: 'acc-one01', region: 'gb1' },
  serverType: { id: 'typ-1', handle: '1gb' },
  image: 'img-deb12',
  zone: { id: 'zon-1', handle: 'gb1-a' },
  interfaces: [{ id: `int-f${n}`, macAddress: '02:ff:19:00:00:99', ipv4Addresses: [`10.9.0.${n}/16`] }],
  hypervisors: ['hv1'],
})

const SAME = (n: number) => `${n} servers: 0 differ in the store, 0 wait to be published, and 0 are only in the store\n`

t.test('reconcile publishes every server into an empty store, and finds no difference then', async (t) => {
  const { store, ids, reconcile, dryRun, db } = await anUnpublished(t, 3)
  await db.deleteFrom('outbox').execute() // as if they were published to a store that is lost
  t.match(await dryRun(), { status: 1, stdout: new RegExp(`^${ids.toSorted()[0]!} is missing in the store\n`) })
  t.strictSame(await listed(store), [], 'it changes nothing')
  t.match(await reconcile(), { status: 0, stdout: /\npublished 3 servers\n$/, stderr: '' })
  t.strictSame(await listed(store), ids.toSorted())
  t.strictSame(await dryRun(), { status: 0, stdout: SAME(3), stderr: '' })
})

t.test(
  'reconcile writes the tombstone of a server that was deleted lately, and removes one that is back',
  async (t) => {
    const { api, db, store, ids, reconcile } = await anUnpublished(t, 2)
    await reconcile()
    const { document } = (await store.get(ids[0]!))!
    await api.call('DELETE', `/1.0/servers/${ids[0]!}`)
    t.match(await reconcile(), { status: 0 })
    t.strictSame(await listed(store), ids.slice(1))
    await redis.client.flushall()
    t.match(await reconcile(), { status: 0 })
    t.strictSame(await listed(store), ids.slice(1))
    t.match(
      await store.put(foreign(ids[0]!, 9), 'none'),
      { kind: 'stale' },
      'a hypervisor that still serves it sees the removal',
    )
    await db.deleteFrom('outbox').execute()
    const { userData: _, ...kept } = document as Record<string, unknown>
    t.match(await store.put({ ...kept, revision: 9 }, Buffer.from('one')), { kind: 'published' })
    t.match(await reconcile(), {
      status: 0,
      stdout: new RegExp(`^${ids[0]!} is deleted here, and the store has it again\n`),
    })
    t.strictSame(await listed(store), ids.slice(1))
  },
)

t.test('reconcile says what differs, repairs it, and removes nothing that only the store has', async (t) => {
  const { db, store, ids, reconcile, dryRun } = await anUnpublished(t, 4)
  const [missing, changed, sealed] = ids as [string, string, string, string]
  await reconcile()
  await redis.client.del(`imds:{gb1}:instance:${missing}`)
  await redis.client.hdel('imds:{gb1}:instances', missing)
  const { document } = (await store.get(changed))!
  const kept = Object.entries(document as object).filter(([field]) => field !== 'userData')
  const altered = { ...Object.fromEntries(kept), revision: 9, tags: { Name: 'other' } }
  t.match(await store.put(altered, Buffer.from('two')), { kind: 'published' })
  await store.seal(sealed)
  t.match(await store.put(foreign('srv-unknown', 1), 'none'), { kind: 'published' })

  const lines = [
    `${missing} is missing in the store`,
    `${changed} differs in index, revision, tags, user-data`,
    `${sealed} differs in index, revision`,
    'srv-unknown, of acc-one01, is only in the store: its machine may run, and its guest is served. ' +
      'Held: 02:ff:19:00:00:99, 10.9.0.1. When its machine is gone: imdsctl remove srv-unknown, and imds-api reconcile',
    '4 servers: 3 differ in the store, 0 wait to be published, and 1 are only in the store',
  ]
  const found = await dryRun()
  t.equal(found.status, 1)
  t.strictSame(found.stdout.trimEnd().split('\n').toSorted(), lines.toSorted())
  t.notMatch(await listed(store), [missing], 'it changes nothing')

  t.match(await reconcile(), { status: 0, stdout: /\npublished 3 servers\n$/, stderr: '' })
  t.match((await store.get(changed))?.userData, Buffer.from('one'))
  t.match((await store.get(changed))?.document, { revision: 10 })
  t.match((await store.get(sealed))?.document, { sealedAt: /^20/ }, 'a seal stays')
  t.strictSame(await listed(store), [...ids, 'srv-unknown'].toSorted())
  t.match(await dryRun(), { status: 1, stdout: /^srv-unknown, / })
  await store.remove('srv-unknown')
  t.match(await dryRun(), { status: 0, stdout: SAME(4) })
  await db.deleteFrom('outbox').execute()
})

t.test('at most 20 servers are named for one reason', async (t) => {
  const { db, dryRun } = await anUnpublished(t, 22)
  await db.deleteFrom('outbox').execute()
  const { stdout } = await dryRun()
  t.match(stdout, /(srv-\S+ is missing in the store\n){20}and 2 more like this\n22 servers: 22 differ/)
})

t.test('what a stopped run has not published, the next one does', async (t) => {
  const { db, store, ids, reconcile } = await anUnpublished(t, 3)
  await reconcile()
  await redis.client.del(`imds:{gb1}:instance:${ids[2]!}`)
  await redis.client.hdel('imds:{gb1}:instances', ids[2]!)
  t.match(await reconcile(AbortSignal.abort()), {
    status: 1,
    stderr: 'stopped; 1 of 1 servers are left: imds-api, and the next run of this, publish them',
  })
  await db.deleteFrom('outbox').execute()
  await inTransaction(db, (tx) => enqueueAgain(tx, ids.slice(2)))
  t.match(await reconcile(), { status: 0, stdout: /\npublished 1 servers\n$/ })
  t.ok((await listed(store)).includes(ids[2]!))
})

t.test('a server that the store refuses is named, and reconcile ends without it', async (t) => {
  const { db, store, ids, reconcile } = await anUnpublished(t, 2)
  const { ipv4_address: address } = await db
    .selectFrom('interfaces')
    .select('ipv4_address')
    .where('server_id', '=', ids[0]!)
    .executeTakeFirstOrThrow()
  const other = foreign('srv-other', 1)
  await store.put({ ...other, interfaces: [{ ...other.interfaces[0], ipv4Addresses: [`${address}/16`] }] }, 'none')
  t.match(await reconcile(), {
    status: 1,
    stderr: new RegExp(`${ids[0]!}: address-owned: ${address} [^]*the store refuses 1 servers: imds-api tries them`),
  })
})

t.test('a store that has the region of another database is left alone, until reconcile takes it over', async (t) => {
  const { db, store, ids, reconcile, dryRun, api } = await anUnpublished(t, 1)
  await reconcile()
  await store.fleet.setDatabase('another-database', true)
  const foreignRegion = /^the store has the region of another database \(another-database, and this is [0-9a-f-]{36}\)/
  t.match(await dryRun(), { status: 1, stdout: foreignRegion })
  const log = pino({ enabled: false })
  const open = openOwnRegion(db, () => Promise.resolve(store), log)
  await t.rejects(open(), /: imds-api reconcile$/, 'imds-api publishes nothing there')
  await store.fleet.drain('hv-of-another', '2026-11-20T15:04:05Z')
  const reasons: string[] = []
  const announce = async () => {
    const announcement = buildAnnouncement({
      database: api.database,
      storeOpener: { open: () => Promise.resolve(store) },
      log: { debug: ({ reason }: { readonly reason: string }) => reasons.push(reason) },
    } as unknown as ServiceParts)
    announcement.start()
    await announcement.stop()
    return [...(await store.fleet.drained()).keys()]
  }
  t.strictSame(await announce(), ['hv-of-another'], 'the other one has its drained hypervisors')
  t.match(reasons, [foreignRegion])
  t.match(await reconcile(), { status: 0, stdout: /\nit takes over the region, / })
  const { database_id: own } = await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()
  t.equal(await store.fleet.database(), own)
  await open()
  t.match(await dryRun(), { status: 0 })
  t.strictSame(await listed(store), ids.toSorted())
  await db.updateTable('hypervisors').set({ drained_at: new Date() }).where('name', '=', 'hv-1').execute()
  t.strictSame([await announce(), reasons.length], [['hv-1'], 1], 'its own are announced')
})

t.test('a server that was published to a Redis which another process has left is published again', async (t) => {
  const { db, store: former, ids } = await anUnpublished(t, 1)
  const successor = await openTestStore(t, { url: (await startRedis(t)).url, region: 'gb1' })
  const log = pino({ enabled: false })
  /** What a process opens that starts with this store. */
  const opens = (store: Publisher) => openOwnRegion(db, () => Promise.resolve(store), log)
  const publish = (own: OwnStore) =>
    publishBatch({ ...own, db, count: () => undefined, hasToStop: () => false, log }, ids)
  const waiting = async () =>
    (await db.selectFrom('outbox').select('server_id').distinct().execute()).map((row) => row.server_id)

  const openFormer = opens(former)
  const own = await openFormer()
  const next = await opens(successor)()
  await t.rejects(publish(own), /^the store was replaced/)
  await t.rejects(openFormer(), /^the store was replaced/)
  t.strictSame(await waiting(), ids)
  await publish(next)
  t.strictSame([await waiting(), await listed(successor)], [[], ids])

  await publish(await opens(former)())
  t.strictSame(await waiting(), [], 'a process that starts with the former one publishes there')
  await opens(successor)()
  t.strictSame(await waiting(), ids, 'and the next one publishes to the successor again')
})

t.test('a mark that the user of a hypervisor has set stops no publish to a store that was replaced', async (t) => {
  const { db, store, ids } = await anUnpublished(t, 1)
  await redis.client.set(keysOf('gb1').behind, '1 \0')
  const own = await openOwnRegion(db, () => Promise.resolve(store), pino({ level: 'silent' }))()
  t.match(own.isBehind, true)
  t.match(
    await publishBatch(
      { ...own, db, count: () => undefined, hasToStop: () => false, log: pino({ level: 'silent' }) },
      ids,
    ).then(() => store.list()),
    [{ id: ids[0] }],
  )
})

t.test('a Redis that went back in place, its history too, gets everything again, under later places', async (t) => {
  const { db, store, ids } = await anUnpublished(t, 2)
  const lines: { code?: string }[] = []
  const log = pino({}, { write: (line: string) => lines.push(JSON.parse(line) as { code?: string }) })
  const open = openOwnRegion(db, () => Promise.resolve(store), log)
  const publish = async () =>
    publishBatch({ ...(await open()), db, count: () => undefined, hasToStop: () => false, log }, ids)
  const [first] = ids as [string, string]
  await publish()
  await open()
  const goBack = await rememberState(redis.client)
  await db.updateTable('servers').set({ revision: 5 }).where('id', '=', first).execute()
  await inTransaction(db, (tx) => enqueueAllServers(tx, []))
  await publish()
  const { last = 0 } = await store.fleet.state()
  await goBack()
  t.equal((await store.list()).find(({ id }) => id === first)?.revision, 1)
  t.equal((await open()).isBehind, true, 'as readyz and doctor say')
  await publish()
  t.match(await store.fleet.state(), { behind: { order: last } }, 'the mark: the last place that the database knew')
  t.same((await store.list()).find(({ id }) => id === first)?.revision, 5)
  t.ok(((await store.fleet.state()).last ?? 0) > last)
  await open()
  t.equal((await open()).isBehind, false)
  t.equal((await store.fleet.state()).behind, undefined, 'the mark is cleared when everything is published')
  t.same(
    lines.filter(({ code }) => code?.startsWith('store-')).map(({ code }) => code),
    [],
  )
})

t.test(
  'the store remembers the numbers of the database; a database that has given less publishes nothing',
  async (t) => {
    const { db, store, pool } = await anUnpublished(t, 2)
    const open = openOwnRegion(db, () => Promise.resolve(store), pino({ enabled: false }))
    await open()
    t.equal((await store.fleet.numbers()).size, 0, 'a crash of PostgreSQL could lose the last ones')
    await open()
    const numbers = await store.fleet.numbers()
    t.match(Object.fromEntries(numbers), { ids_srv: 2, ids_int: 2 })
    await pool.query("select nextval('ids_srv')")
    await open()
    await pool.query("select setval('ids_srv', 1)") // as in a backup
    await t.rejects(open(), /it is an older backup, or a copy. Run imds-api reconcile$/)
    await pool.query("select setval('ids_srv', 3)")
    await open()
    t.equal((await store.fleet.numbers()).get('ids_srv'), 3)
  },
)
