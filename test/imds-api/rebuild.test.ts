/**
 * `imds-api rebuild` and `imds-api verify`: an empty store, one that differs from the database, and one of another
 * database. The commands run in the process of the test; docs/operations/imds-api.md has them as a process.
 */
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { buildHypervisorCheck } from '../../src/imds-api/background.ts'
import { enqueueRebuild } from '../../src/imds-api/changes/servers.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { CommandFailure } from '../../src/runtime/exit-status.ts'
import { publishBatch } from '../../src/imds-api/publish/batch.ts'
import { openOwnRegion, type OwnStore } from '../../src/imds-api/publish/region-database.ts'
import { rebuild, verify, type RebuildOptions } from '../../src/imds-api/rebuild.ts'
import type { ServiceParts } from '../../src/imds-api/service-parts.ts'
import type { Publisher } from '../../src/store/open.ts'
import { aRegion } from '../support/fixtures/region.ts'
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
  const region = aRegion()
  const accounts = region.accounts.map((account) => ({ ...account, ram_limit: 65_536 }))
  const api = await anApi(t, { region: { ...region, accounts }, store: settings })
  const { db, pool } = api.database
  const store = await openTestStore(t, settings)
  const ids: string[] = []
  for (let n = 0; n < servers; n++) {
    const { body } = await api.call('POST', '/1.0/servers', { image: 'img-deb12', user_data: 'b25l' })
    ids.push((body as { id: string }).id)
  }
  const run = async (command: (parts: Parameters<typeof rebuild>[0]) => Promise<number>, json = false) => {
    const { output, text } = collectOutput(json)
    const open = () => Promise.resolve({ ...api.database, close: () => Promise.resolve() })
    const parts = {
      config: {
        bootSeconds: 60,
        store: settings,
        database: { kind: 'server', url: '', passwordFile: undefined } as const, // `open` has it already
      },
      output,
      open,
    }
    const status = await command(parts).catch((error: unknown) => {
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
    rebuild: (options: RebuildOptions = {}, signal = new AbortController().signal) =>
      run((parts) => rebuild(parts, options, signal)),
    verify: (json = false) => run(verify, json),
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

t.test('rebuild publishes every server into an empty store, and verify finds no difference then', async (t) => {
  const { store, ids, rebuild, verify, db } = await anUnpublished(t, 3)
  await db.deleteFrom('outbox').execute() // as if they were published to a store that is lost
  t.match(await verify(), {
    status: 1,
    stdout: new RegExp(`^${ids.toSorted()[0]!} is missing in the store: imds-api rebuild`),
  })
  t.match(await rebuild(), { status: 0, stdout: 'published 3 servers\n', stderr: '' })
  t.strictSame(await listed(store), ids.toSorted())
  t.strictSame(await verify(), {
    status: 0,
    stdout: '3 servers: 0 differ in the store, 0 wait to be published\n',
    stderr: '',
  })
})

t.test('rebuild writes the tombstone of a server that was deleted lately', async (t) => {
  const { api, store, ids, rebuild } = await anUnpublished(t, 2)
  await rebuild()
  await api.call('DELETE', `/1.0/servers/${ids[0]!}`)
  t.match(await rebuild(), { status: 0 })
  t.strictSame(await listed(store), ids.slice(1))
  await redis.client.flushall()
  t.match(await rebuild(), { status: 0 })
  t.strictSame(await listed(store), ids.slice(1))
  t.match(
    await store.put(foreign(ids[0]!, 9), 'none'),
    { kind: 'stale' },
    'a hypervisor that still serves it sees the removal',
  )
})

t.test('verify says what differs, rebuild repairs it, and only --prune removes a record', async (t) => {
  const { db, pool, store, ids, rebuild, verify } = await anUnpublished(t, 4)
  const [missing, changed, sealed, same] = ids as [string, string, string, string]
  await rebuild()
  await redis.client.del(`imds:{gb1}:instance:${missing}`)
  await redis.client.hdel('imds:{gb1}:instances', missing)
  const { document } = (await store.get(changed))!
  const kept = Object.entries(document as object).filter(([field]) => field !== 'userData')
  const altered = { ...Object.fromEntries(kept), revision: 9, tags: { Name: 'other' } }
  t.match(await store.put(altered, Buffer.from('two')), { kind: 'published' })
  await store.seal(sealed)
  t.match(await store.put(foreign('srv-unknown', 1), 'none'), { kind: 'published' })
  await pool.query('alter sequence ids_srv restart') // as after a restore

  const { status, stdout } = await verify()
  t.equal(status, 1)
  t.strictSame(
    stdout.split('\n').toSorted(),
    [
      '',
      '4 servers: 4 differ in the store, 0 wait to be published',
      `${missing} is missing in the store: imds-api rebuild publishes it`,
      `${changed} differs in index, revision, tags, user-data: imds-api rebuild publishes it again`,
      `${sealed} differs in index, revision: imds-api rebuild publishes it again`,
      'srv-unknown is only in the store: imds-api rebuild --prune removes it',
      'imds-api advance would say: the store has srv- ids up to number 4, the database up to 0',
      'imds-api advance would say: 2 servers have a higher revision in the store: they are published above it',
    ].toSorted(),
  )
  t.notOk(stdout.includes(same))
  const lines = (await verify(true)).stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as object)
  t.match(
    lines.find((line) => 'server' in line && line.server === changed),
    {
      formatVersion: 1,
      server: changed,
      finding: 'different',
      fields: ['index', 'revision', 'tags', 'user-data'],
    },
  )
  t.match(lines.at(-1), { formatVersion: 1, servers: 4, different: 4, waiting: 0, behind: 2 })
  const { rows } = await pool.query<{ last: number }>('select last_value::int as last from ids_srv')
  t.strictSame(rows, [{ last: 1 }], 'it changes nothing')

  t.match(await rebuild(), { status: 0, stderr: /1 servers are only in the store: imds-api verify lists them/ })
  t.match((await store.get(changed))?.userData, Buffer.from('one'))
  t.match((await store.get(changed))?.document, { revision: 10 })
  t.match((await store.get(sealed))?.document, { sealedAt: /^20/ }, 'a seal stays')
  t.strictSame(await listed(store), [...ids, 'srv-unknown'].toSorted())

  t.match(
    await rebuild({ prune: true }),
    {
      status: 1,
      stdout: 'srv-unknown is only in the store\n',
      stderr: /^1 of 5 records would be removed, more than 5 %: nothing was done/,
    },
    'it removes at most 5 %',
  )
  t.ok((await listed(store)).includes('srv-unknown'))
  t.match(await rebuild({ prune: true, force: true }), {
    status: 0,
    stdout: /^srv-unknown is only in the store\nremoved 1 servers; .*\npublished 4 servers\n$/,
  })
  t.strictSame(await listed(store), ids.toSorted())
  await db.deleteFrom('outbox').execute()
})

t.test('a rebuild that was stopped is continued, and does not begin again', async (t) => {
  const { db, store, ids, rebuild } = await anUnpublished(t, 3)
  await rebuild()
  await redis.client.del(`imds:{gb1}:instance:${ids[2]!}`)
  await redis.client.hdel('imds:{gb1}:instances', ids[2]!)
  t.strictSame(await inTransaction(db, enqueueRebuild), { left: 3, records: 3, isContinued: false })
  await db.deleteFrom('outbox').where('server_id', '!=', ids[1]!).execute() // those that were published
  t.match(await rebuild({}, AbortSignal.abort()), {
    status: 1,
    stdout: 'an earlier rebuild is continued: 1 servers are left\n',
    stderr: 'stopped; 1 of 1 servers are left: imds-api rebuild continues',
  })
  await db.deleteFrom('outbox').execute()
  await inTransaction(db, enqueueRebuild)
  await db.deleteFrom('outbox').where('server_id', '!=', ids[2]!).execute()
  t.match(await rebuild(), { status: 0, stdout: /^an earlier rebuild is continued: 1 .*\npublished 1 servers\n$/ })
  t.ok((await listed(store)).includes(ids[2]!))
})

t.test('a server that the store refuses is named, and the rebuild ends without it', async (t) => {
  const { db, store, ids, rebuild } = await anUnpublished(t, 2)
  const { ipv4_address: address } = await db
    .selectFrom('interfaces')
    .select('ipv4_address')
    .where('server_id', '=', ids[0]!)
    .executeTakeFirstOrThrow()
  const other = foreign('srv-other', 1)
  await store.put({ ...other, interfaces: [{ ...other.interfaces[0], ipv4Addresses: [`${address}/16`] }] }, 'none')
  t.match(await rebuild(), {
    status: 1,
    stdout: 'published 1 servers; the store refuses 1: imds-api tries them every minute\n',
    stderr: new RegExp(`${ids[0]!}: address-owned: ${address} `),
  })
})

t.test('a store that has the region of another database is left alone until --force', async (t) => {
  const { api, db, store, ids, rebuild, verify } = await anUnpublished(t, 1)
  await rebuild()
  await store.fleet.setDatabase('another-database', true)
  const refused = /^the store has the region of another database \(another-database, and this is [0-9a-f-]{36}\)/
  t.match(await verify(), { status: 1, stdout: refused })
  t.match(await rebuild({ prune: true }), { status: 1, stdout: '', stderr: refused })
  const log = pino({ enabled: false })
  const open = openOwnRegion(db, () => Promise.resolve(store), log)
  await t.rejects(open(), refused, 'imds-api publishes nothing there')
  await store.fleet.drain('hv-of-another', '2026-11-20T15:04:05Z')
  const check = buildHypervisorCheck({
    database: api.database,
    storeOpener: { open: () => Promise.resolve(store) },
    metrics: { setUnannounced: () => undefined },
    log,
  } as unknown as ServiceParts)
  await t.rejects(check.check(), refused)
  t.strictSame(
    [...(await store.fleet.drained()).keys()],
    ['hv-of-another'],
    'the other one has its drained hypervisors',
  )
  t.match(await rebuild({ force: true }), { status: 0 })
  const { database_id: own } = await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()
  t.equal(await store.fleet.database(), own)
  await open()
  t.match(await verify(), { status: 0 })
  t.strictSame(await listed(store), ids.toSorted())
})

t.test('a server that was published to a Redis which another process has left is published again', async (t) => {
  const { db, store: former, ids } = await anUnpublished(t, 1)
  const successor = await openTestStore(t, { url: (await startRedis(t)).url, region: 'gb1' })
  const log = pino({ enabled: false })
  /** What a process opens that starts with this store. */
  const opens = (store: Publisher) => openOwnRegion(db, () => Promise.resolve(store), log)
  const publish = (own: OwnStore) =>
    publishBatch({ ...own, db, count: () => undefined, hasToStop: () => false, bootSeconds: 60, log }, ids)
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
      { ...own, db, count: () => undefined, hasToStop: () => false, bootSeconds: 60, log: pino({ level: 'silent' }) },
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
    publishBatch({ ...(await open()), db, count: () => undefined, hasToStop: () => false, bootSeconds: 60, log }, ids)
  const [first] = ids as [string, string]
  await publish()
  await open()
  const goBack = await rememberState(redis.client)
  await db.updateTable('servers').set({ revision: 5 }).where('id', '=', first).execute()
  await inTransaction(db, enqueueRebuild)
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
    ['store-behind'],
  )
})
