/**
 * From a change in the database to the store: what is published, in which order, and what happens to a record that the
 * store refuses.
 */
import { sql } from 'kysely'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { markChanged, readOutbox } from '../../src/imds-api/database/outbox.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { DatabaseReport } from '../../src/imds-api/http/database-errors.ts'
import { composeMany } from '../../src/imds-api/publish/compose.ts'
import { publishBatch } from '../../src/imds-api/publish/batch.ts'
import type { PublishOutcome } from '../../src/imds-api/publish/write-servers.ts'
import { MAX_BATCH_SERVERS, OutboxPublisher } from '../../src/imds-api/publish/outbox-publisher.ts'
import type { Publisher } from '../../src/store/open.ts'
import { aRegion, CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, countOfLockWaits, openTransaction, rowOf, setRow, type TestApi } from '../support/programs/api.ts'
import { until, type LogLine } from '../support/programs/daemon.ts'
import { openTestStore } from '../support/test-store.ts'

const base64 = (text: string) => Buffer.from(text).toString('base64')
const region = aRegion({
  accounts: aRegion().accounts.map((account) => ({ ...account, ram_limit: 65_536, cloud_ips_limit: 40 })),
})

interface Interface {
  readonly id: string
  readonly ipv4_address: string
}
interface Server {
  readonly id: string
  readonly status: string
  readonly interfaces: readonly Interface[]
  readonly cloud_ips: readonly CloudIp[]
}
interface CloudIp {
  readonly id: string
  readonly status: string
  readonly public_ipv4: string
  readonly server: { readonly id: string } | null
}
/** A record of the store, as far as these tests read it. */
interface StoredRecord {
  readonly revision: number
  readonly sealedAt?: string
  readonly architecture: string
  readonly launchTime: string
  readonly serverGroups: readonly { readonly id: string }[]
  readonly interfaces: readonly { readonly cloudIps: readonly { readonly id: string }[] }[]
}

t.test('the address of a deleted cloud IP is free once no record in the store names it', async (t) => {
  const { call, database, startPublisher, drained } = await anApi(t, {
    region: aRegion({ address_pools: { ...aRegion().address_pools, public_ipv4: ['203.0.113.7-203.0.113.7'] } }),
  })
  const create = () => call('POST', '/1.0/cloud_ips', undefined, TWO)
  const { body } = await call('POST', '/1.0/servers', { image: 'img-deb12', cloud_ip: true })
  const {
    id,
    cloud_ips: [cloudIp],
  } = body as Server
  await database.db.updateTable('cloud_ips').set({ status: 'mapped' }).execute() // as after a publish
  t.match(await call('POST', `/1.0/cloud_ips/${cloudIp!.id}/unmap`), { status: 202 })
  t.match(await call('DELETE', `/1.0/cloud_ips/${cloudIp!.id}`), { status: 200 })
  t.match(
    await create(),
    { status: 503, body: { error_name: 'insufficient_capacity' } },
    'the change of the server waits to be published',
  )
  await startPublisher()
  await drained()
  const made = await create()
  t.match(made, { status: 201, body: { public_ipv4: '203.0.113.7' } })
  await call('DELETE', `/1.0/cloud_ips/${(made.body as CloudIp).id}`, undefined, TWO)
  t.match(await create(), { status: 201, body: { public_ipv4: '203.0.113.7' } }, 'at once if nothing waits')
  t.match(await call('GET', `/1.0/servers/${id}`), { status: 200 })
})

t.test('while nothing is published, an account keeps at most twice its limit of addresses from others', async (t) => {
  const region = aRegion()
  const { call } = await anApi(t, {
    region: {
      ...region,
      accounts: region.accounts.map((account) => ({ ...account, cloud_ips_limit: 2 })),
      address_pools: { ...region.address_pools, public_ipv4: ['203.0.113.8-203.0.113.15'] },
    },
  })
  await call('POST', '/1.0/servers', { image: 'img-deb12' })
  const statuses: number[] = []
  for (let i = 0; i < 8; i++) {
    const { status, body } = await call('POST', '/1.0/cloud_ips')
    statuses.push(status)
    if (status === 201) await call('DELETE', `/1.0/cloud_ips/${(body as CloudIp).id}`)
  }
  t.strictSame(statuses, [201, 201, 201, 201, 503, 503, 503, 503])
  t.match(await call('POST', '/1.0/cloud_ips'), {
    headers: { 'retry-after': '1' },
    body: {
      errors: ['4 deleted cloud IPs are not released yet: try again in a few seconds'],
    },
  })
  t.match(await call('POST', '/1.0/cloud_ips', undefined, TWO), { status: 201 })
})

t.test('a statement that is prepared while the tables are empty reads them by their indexes', async (t) => {
  const api = await anApi(t)
  const store = await openTestStore(t, { url: `file:${api.directory}/` })
  const { body } = await api.call('POST', '/1.0/servers', { image: 'img-deb12' })
  const { id } = body as Server
  await api.database.db.connection().execute(async (db) => {
    const parts = {
      db,
      store,
      history: 'files',
      isBehind: false,
      noteOrder: () => undefined,
      count: () => undefined,
      hasToStop: () => false,
      log: pino({ enabled: false }),
    }
    t.strictSame(await publishBatch(parts, [id]), [])
    await sql`set plan_cache_mode = force_generic_plan`.execute(db)
    const { rows: prepared } = await sql<{
      name: string
      statement: string
      parameters: readonly string[]
      custom: number
    }>`
      select name, statement, parameter_types::text[] as parameters, custom_plans::int as custom
      from pg_prepared_statements order by name`.execute(db)
    t.ok(prepared.length > 13, `${prepared.length} of the create, whose connection it was, and of the publish`)
    for (const part of ['array_agg(id order by id) as rows from outbox', '"type_handle"', 'delete from outbox'])
      t.ok(prepared.some(({ statement }) => statement.includes(part)))
    for (const { name, statement, parameters, custom } of prepared) {
      const isPlanSet = statement.includes('force_generic_plan') // by itself; it reads no table
      if (!isPlanSet) t.equal(custom, 0, `${name} has one plan for all values`)
      const values = parameters.map(() => 'null').join()
      const { rows } = await sql.raw<{ 'QUERY PLAN': string }>(`explain execute "${name}"(${values})`).execute(db)
      const plan = rows.map((row) => row['QUERY PLAN']).join('\n')
      t.notMatch(plan, /Seq Scan on (?!region|zones|server_types|hypervisors|address_pools)/, name)
    }
  })
})

t.test('publishing', async (t) => {
  const api = await anApi(t, { region })
  const store = await openTestStore(t, { url: `file:${api.directory}/` })
  const { db } = api.database

  const create = async (body: object = {}) => {
    const { status, body: server } = await api.call('POST', '/1.0/servers', { image: 'img-deb12', ...body })
    if (status !== 202) throw new Error(JSON.stringify(server))
    return server as Server
  }
  const serverOf = async (id: string) => (await api.call('GET', `/1.0/servers/${id}`)).body as Server
  const cloudIpOf = async (id: string) => (await api.call('GET', `/1.0/cloud_ips/${id}`)).body as CloudIp
  const aCloudIp = async () => (await api.call('POST', '/1.0/cloud_ips')).body as CloudIp
  const update = async (id: string, body: object) => {
    const { status } = await api.call('PUT', `/1.0/servers/${id}`, body)
    if (status !== 200) throw new Error(`the update of ${id} was answered ${status}`)
  }
  const recordOf = async (id: string) => (await store.get(id))?.document as StoredRecord | undefined
  const isPublished = async (id: string) =>
    (await db.selectFrom('outbox').select('id').where('server_id', '=', id).executeTakeFirst()) === undefined
  const cloudIpsOf = async (id: string) => (await recordOf(id))!.interfaces[0]!.cloudIps.map((one) => one.id)
  /** As if the minute had passed after which a server is tried again. */
  const letTimePass = (id: string) =>
    db
      .updateTable('outbox')
      .set({ retry_at: new Date(0) })
      .where('server_id', '=', id)
      .execute()

  t.test('a record has the architecture of the image when its server was created, and that time', async (t) => {
    const setImage = (arch: 'i686' | 'x86_64') => setRow(db, 'images', 'img-deb12', { arch })
    const first = await create()
    await setImage('i686')
    const second = await create()
    aPublisher(t, api, store)
    await update(first.id, { tags: { Name: 'changed' } })
    for (const { id } of [first, second]) await until(() => isPublished(id), `${id} to be published`)
    await setImage('x86_64')
    const factsOf = async ({ id }: Server) => {
      const { architecture, launchTime } = (await recordOf(id))!
      return [architecture, Date.parse(launchTime)]
    }
    const createdAt = async ({ id }: Server) => (await rowOf(db, 'servers', id)).created_at
    t.strictSame(await factsOf(first), ['x86_64', (await createdAt(first)).getTime()])
    t.strictSame(await factsOf(second), ['i386', (await createdAt(second)).getTime()])
  })

  t.test('a server is creating, and its cloud IP reserved, until its record is in the store', async (t) => {
    const {
      id,
      status,
      cloud_ips: [reserved],
    } = await create({ cloud_ip: true })
    t.equal(status, 'creating')
    t.equal(reserved?.status, 'reserved')
    t.equal((await api.call('POST', `/1.0/cloud_ips/${reserved!.id}/unmap`)).status, 409)
    t.equal((await api.call('DELETE', `/1.0/cloud_ips/${reserved!.id}`)).status, 409)
    let duringPut: readonly string[] = []
    const before = async () => {
      duringPut = [(await serverOf(id)).status, (await cloudIpOf(reserved!.id)).status]
    }
    aPublisher(t, api, around(store, { before }))
    await until(() => isPublished(id), 'the server to be published')
    t.strictSame(duringPut, ['creating', 'reserved'])
    t.equal((await serverOf(id)).status, 'active')
    t.match(await cloudIpOf(reserved!.id), { status: 'mapped', server: { id } })
    t.strictSame(await cloudIpsOf(id), [reserved!.id])
  })

  t.test('deleting a server removes its record first, and then frees its addresses', async (t) => {
    const {
      id,
      interfaces: [first],
      cloud_ips: [cloudIp],
    } = await create({ cloud_ip: true })
    const allocations = async () =>
      (await db.selectFrom('allocations').select('number').where('holder', '=', first!.id).execute()).length
    let whileRemoved: number | undefined
    aPublisher(t, api, {
      ...methodsOf(store),
      remove: async (...args) => {
        const result = await store.remove(...args)
        whileRemoved = await allocations()
        return result
      },
    })
    await until(() => isPublished(id), 'the server to be published')
    t.match((await api.call('DELETE', `/1.0/servers/${id}`)).body, { status: 'deleting', cloud_ips: [] })
    t.match(await cloudIpOf(cloudIp!.id), { status: 'unmapped', server: null })
    await until(async () => (await serverOf(id)).status === 'deleted', 'the server to be deleted')
    t.equal(whileRemoved, 2, 'its MAC and IPv4 address were still its own')
    t.equal(await allocations(), 0)
    t.equal(await recordOf(id), undefined)
  })

  t.test('a refused record stops only its server, is reported, and is tried again', async (t) => {
    const [owned, invalid, good] = [await create(), await create(), await create()]
    const address = owned.interfaces[0]!.ipv4_address
    const foreign = {
      ...(await composeMany(db, [good.id]))[0]!.record,
      id: 'srv-other',
      interfaces: [{ id: 'int-other', macAddress: '02:24:19:00:00:99', ipv4Addresses: [`${address}/16`] }],
    }
    t.match(await store.put(foreign), { kind: 'published' })
    const { mac_address: mac } = await rowOf(db, 'interfaces', invalid.interfaces[0]!.id)
    await db.updateTable('interfaces').set({ mac_address: 'nonsense' }).where('server_id', '=', invalid.id).execute()

    const { counted } = aPublisher(t, api, store)
    const faultOf = async (id: string) => (await rowOf(db, 'servers', id)).publish_fault
    await until(
      async () =>
        (await isPublished(good.id)) && (await faultOf(owned.id)) !== null && (await faultOf(invalid.id)) !== null,
      'one to be published and two refused',
    )
    t.equal((await serverOf(good.id)).status, 'active')
    t.equal((await serverOf(owned.id)).status, 'creating')
    t.equal(await faultOf(owned.id), `address-owned: ${address} of the network default belongs to srv-other`)
    t.match(await faultOf(invalid.id), /^invalid: .*macAddress/)
    t.ok(counted.includes('address-owned') && counted.includes('invalid'))
    t.match(await readOutbox(db), { length: 2, faulty: 2 })

    const changesOf = async (id: string) =>
      (await db.selectFrom('outbox').select('id').where('server_id', '=', id).execute()).map((row) => row.id)
    const oldest = await changesOf(invalid.id)
    await inTransaction(db, (tx) => markChanged(tx, [invalid.id]))
    await until(async () => (await changesOf(invalid.id)).length === 1, 'the change to be refused too')
    t.strictSame(await changesOf(invalid.id), oldest, 'the oldest waits: the record still has the addresses of then')

    await store.remove('srv-other')
    await update(owned.id, { user_data: base64('a change') })
    await until(() => isPublished(owned.id), 'the change to be published at once')
    t.equal(await faultOf(owned.id), null)
    await db.updateTable('interfaces').set({ mac_address: mac }).where('server_id', '=', invalid.id).execute()
    await letTimePass(invalid.id)
    await until(() => isPublished(invalid.id), 'the other to be tried again')
    t.equal((await serverOf(invalid.id)).status, 'active')
    t.match(await readOutbox(db), { faulty: 0 })
  })

  t.test('a server whose publish cannot be completed in the database does not delay the others', async (t) => {
    const {
      interfaces: [first],
      ...stuck
    } = await create()
    const { log, publisher } = aPublisher(t, api, store)
    await until(() => isPublished(stuck.id), 'the server to be published')
    const { id: cloudIp } = await aCloudIp()
    await inTransaction(db, async (tx) => {
      await setRow(tx, 'servers', stuck.id, { status: 'deleting' })
      await setRow(tx, 'cloud_ips', cloudIp, { status: 'mapped', interface_id: first!.id }) // only a bug could do this
      await markChanged(tx, [stuck.id])
    })
    await until(
      () => log.some((line) => line.level === 'error' && line['server'] === stuck.id),
      'the fault to be reported',
    )
    const other = await create()
    await until(() => isPublished(other.id), 'another server to be published')
    t.equal(publisher.problem, undefined)
    await setRow(db, 'cloud_ips', cloudIp, { status: 'unmapped', interface_id: null })
    await letTimePass(stuck.id)
    await until(async () => (await serverOf(stuck.id)).status === 'deleted', 'the server to be deleted')
    await api.call('DELETE', `/1.0/cloud_ips/${cloudIp}`)
  })

  t.test('C3: cloud IPs are in the order in which they were mapped, to the server or to its group', async (t) => {
    const { id } = await create()
    const { id: group } = (await api.call('POST', '/1.0/server_groups', { servers: [{ server: id }] })).body as {
      id: string
    }
    const ids: string[] = []
    for (let i = 0; i < 4; i++) ids.push((await aCloudIp()).id)
    const listed = async () =>
      ((await composeMany(db, [id]))[0]!.record as StoredRecord).interfaces[0]!.cloudIps.map((one) => one.id)
    for (const order of [[...ids].sort(), [...ids].sort().reverse()]) {
      for (const [i, cloudIp] of order.entries()) {
        t.equal(
          (await api.call('POST', `/1.0/cloud_ips/${cloudIp}/map`, { destination: i % 2 === 0 ? group : id })).status,
          202,
        )
        t.strictSame(await listed(), order.slice(0, i + 1))
      }
      for (const cloudIp of ids) await api.call('POST', `/1.0/cloud_ips/${cloudIp}/unmap`)
    }
    const reserving = await create({ cloud_ip: ids[0] })
    await api.call('POST', `/1.0/server_groups/${group}/add_servers`, { servers: [{ server: reserving.id }] })
    await api.call('POST', `/1.0/cloud_ips/${ids[1]!}/map`, { destination: group })
    t.strictSame(
      ((await composeMany(db, [reserving.id]))[0]!.record as StoredRecord).interfaces[0]!.cloudIps.map((one) => one.id),
      ids.slice(0, 2),
      'one that the create reserves is first',
    )
    for (const server of [id, reserving.id]) await api.call('DELETE', `/1.0/servers/${server}`)
    for (const cloudIp of ids) await api.call('DELETE', `/1.0/cloud_ips/${cloudIp}`)
  })
})

t.test('a batch', async (t) => {
  const api = await anApi(t, { region })
  const store = await openTestStore(t, { url: `file:${api.directory}/` })
  const { db, pool } = api.database
  const create = async () => ((await api.call('POST', '/1.0/servers', { image: 'img-deb12' })).body as Server).id
  const publish = (ids: readonly string[], put: Store['put']) => {
    const parts = { count: () => undefined, hasToStop: () => false, log: pino({ enabled: false }) }
    return publishBatch(
      {
        ...parts,
        db,
        store: { ...methodsOf(store), put },
        history: 'files',
        isBehind: false,
        noteOrder: () => undefined,
      },
      ids,
    )
  }
  /** Puts, but for what `result` returns for a server. */
  const putUnless =
    (id: string, result: (document: StoredDocument) => Promise<PutResult>): Store['put'] =>
    (document, userData, options) =>
      (document as StoredDocument).id === id && options?.dryRun !== true
        ? result(document as StoredDocument)
        : store.put(document, userData, options)

  t.test('locks its servers in the order of their ids, as changes do, also those that the store refuses', async (t) => {
    const [first, second] = [await create(), await create()].sort() as [string, string]
    const change = await openTransaction(db)
    await sql`select from servers where id = ${first} for update`.execute(change)
    const publishing = publish(
      [second, first],
      putUnless(first, () => Promise.reject(new Error('refused'))),
    )
    await until(async () => (await countOfLockWaits(pool)) > 0, 'the batch to wait')
    await t.resolves(pool.query('select from servers where id = $1 for update nowait', [second]))
    await change.rollback().execute()
    t.strictSame(await publishing, [])
  })

  t.test('whose rows are faulty waits, but not with a change that came meanwhile', async (t) => {
    const id = await create()
    await pool.query(`alter table servers add constraint only_here check (id <> '${id}' or revision < 1000)`)
    const put = putUnless(id, async ({ revision }) => {
      await inTransaction(db, (tx) => markChanged(tx, [id]))
      return { kind: 'stale', revision: revision + 1000 }
    })
    t.strictSame(await publish([id], put), [])
    const { rows } = await pool.query(
      'select retry_at is not null as waits from outbox where server_id = $1 order by id',
      [id],
    )
    t.strictSame(rows, [{ waits: true }, { waits: false }])
    t.match(
      (await pool.query<{ publish_fault: string }>('select publish_fault from servers where id = $1', [id])).rows[0],
      { publish_fault: /only_here/ },
    )
    await pool.query('alter table servers drop constraint only_here')
  })

  t.test('is rejected while a table cannot be used: that is no fault of its servers', async (t) => {
    const id = await create()
    await pool.query('alter table server_keys rename to away')
    await t.rejects(
      publish([id], (...args) => store.put(...args)),
      { code: '42P01' },
    )
    await pool.query('alter table away rename to server_keys')
    t.strictSame((await pool.query('select publish_fault from servers where id = $1', [id])).rows, [
      { publish_fault: null },
    ])
  })
})

/** The servers of a batch in the tests of the order. */
const MOST = 2
/**
 * What goes first is among so many of the first publishes. Two batches of changes of many servers are in flight at once,
 * and the first publish of a new server takes longer than others.
 */
const FIRST = 12

t.test('the order of publishing', async (t) => {
  const api = await anApi(t, { region })
  const { db, pool } = api.database
  const store = await openTestStore(t, { url: `file:${api.directory}/` })
  const create = async (account: keyof typeof CLIENT_OF = ONE) =>
    ((await api.call('POST', '/1.0/servers', { image: 'img-deb12' }, account)).body as Server).id
  const makeGroup = async (account: keyof typeof CLIENT_OF) => {
    const ids: string[] = []
    for (let i = 0; i < 20; i++) ids.push(await create(account))
    const { id } = (
      await api.call('POST', '/1.0/server_groups', { servers: ids.map((server) => ({ server })) }, account)
    ).body as { id: string }
    let name = 0
    return {
      ids,
      rename: async () => {
        t.equal((await api.call('PUT', `/1.0/server_groups/${id}`, { name: String((name += 1)) }, account)).status, 202)
      },
    }
  }
  /** Publishes all that waits, and returns the servers in the order of their publishes. */
  const publishAll = async (replaced: Partial<Store> = {}) => {
    const { puts, stop } = aPublisher(t, api, { ...methodsOf(store), ...replaced }, MOST)
    await api.drained()
    await stop()
    return puts.map(({ id }) => id)
  }
  const [one, two] = [await makeGroup(ONE), await makeGroup(TWO)]
  await publishAll()

  t.test('a change of many servers delays neither servers of another account nor a change of one server', async (t) => {
    await one.rename()
    const [foreign, own, last] = [await create(TWO), await create(ONE), one.ids.toSorted().at(-1)!]
    t.equal((await api.call('PUT', `/1.0/servers/${last}`, { tags: { Name: 'x' } })).status, 200)
    const order = await publishAll()
    for (const id of [foreign, own, last]) t.ok(order.indexOf(id) < FIRST, `${id} is number ${order.indexOf(id)}`)
    t.strictSame(order.toSorted(), [...one.ids, foreign, own].sort(), 'each server is published once')
  })

  t.test('while the store takes no change of many servers, an urgent change is published', async (t) => {
    await one.rename()
    const answer = Promise.withResolvers<undefined>()
    let [inFlight, most] = [0, 0]
    const before = async ({ id }: StoredDocument) => {
      if (!one.ids.includes(id)) return
      most = Math.max(most, (inFlight += 1))
      await answer.promise
      inFlight -= 1
    }
    const { stop } = aPublisher(t, api, around(store, { before }), 4)
    await until(() => inFlight === 8, 'two batches to wait')
    for (const account of [ONE, TWO] as const) {
      const id = await create(account)
      await until(
        async () =>
          ((await api.call('GET', `/1.0/servers/${id}`, undefined, account)).body as Server).status === 'active',
        'a new server to be published',
      )
    }
    answer.resolve(undefined)
    await api.drained()
    await stop()
    t.equal(most, 8, 'no more are in flight at once')
  })

  t.test('after the clock was set back by a day, a server whose publish failed is tried again at once', async (t) => {
    const failed = await create(TWO)
    await pool.query("update outbox set retry_at = now() + interval '1 day 1 minute' where server_id = $1", [failed])
    const { puts, stop } = aPublisher(t, api, store)
    await until(() => puts.some(({ id }) => id === failed), 'the next try')
    await stop()
  })

  t.test('under a stream of new servers without an end, a change of many servers and a retry go on', async (t) => {
    const faulty = await create(TWO)
    await pool.query("update outbox set retry_at = now() + interval '2 s' where server_id = $1", [faulty])
    await one.rename()
    const waiting = new Set([...one.ids, faulty])
    const order: string[] = []
    const stream = two.ids.slice(0, 8)
    const before = ({ id }: StoredDocument) => {
      order.push(id)
      waiting.delete(id)
      return inTransaction(db, (tx) => markChanged(tx, [stream[order.length % stream.length]!]))
    }
    const publisher = aPublisher(t, api, around(store, { before }))
    await until(() => waiting.size === 0, 'all to be published', 30_000)
    await publisher.stop()
    const mass = order.filter((id) => one.ids.includes(id))
    t.ok(order.indexOf(mass[19]!) < 20 * 4 + FIRST, `the last of the change is number ${order.indexOf(mass[19]!)}`)
    await publishAll()
  })

  t.test('a publish that the store does not answer stops only its batch', async (t) => {
    const [stuck, ...others] = one.ids
    await one.rename()
    const late = await create(TWO)
    const answer = Promise.withResolvers<undefined>()
    const waiting = async () =>
      (await db.selectFrom('outbox').select('server_id').distinct().execute()).map((row) => row.server_id)
    const before = ({ id }: StoredDocument) => (id === stuck ? answer.promise : undefined)
    const { puts, stop } = aPublisher(t, api, around(store, { before }), MOST)
    await until(async () => (await waiting()).length <= MOST, 'the others to be published')
    t.ok((await waiting()).includes(stuck!))
    const later = await create(TWO)
    await until(() => puts.some(({ id }) => id === later), 'a server that is created later to be published')
    t.strictSame(
      [...others, late].filter((id) => !puts.some((put) => put.id === id)),
      [],
    )
    answer.resolve(undefined)
    await api.drained()
    await stop()
  })
})

type Store = Pick<Publisher, 'initialise' | 'get' | 'put' | 'remove'>

type StoredDocument = Readonly<Record<'id', string> & Record<'revision', number>>
type PutResult = Awaited<ReturnType<Store['put']>>

/** A store at whose puts something happens. */
function around(
  store: Store,
  {
    before = () => undefined,
    after = () => undefined,
  }: {
    readonly before?: (document: StoredDocument) => unknown
    readonly after?: (document: StoredDocument, result: PutResult, isDryRun: boolean) => unknown
  },
): Store {
  return {
    ...methodsOf(store),
    put: async (document, userData, options) => {
      await before(document as StoredDocument)
      const result = await store.put(document, userData, options)
      await after(document as StoredDocument, result, options?.dryRun === true)
      return result
    },
  }
}

/** The methods of a store that a publisher uses. A test may replace some of them. */
function methodsOf(store: Store): Store {
  return {
    initialise: () => store.initialise(),
    get: (id) => store.get(id),
    put: (document, userData, options) => store.put(document, userData, options),
    remove: (id, revision) => store.remove(id, revision),
  }
}

/** Starts a publisher that stops with the test. `puts`: what it has published, in order. */
function aPublisher(t: Test, api: TestApi, store: Store, batchSize = MAX_BATCH_SERVERS) {
  const log: LogLine[] = []
  const counted: PublishOutcome[] = []
  const puts: { readonly id: string; readonly revision: number }[] = []
  const logger = pino(
    { base: {}, formatters: { level: (level) => ({ level }) } },
    {
      write: (line: string) => log.push(JSON.parse(line) as LogLine),
    },
  )
  const publisher = new OutboxPublisher({
    db: api.database.db,
    connect: () => api.database.connect(),
    openStore: async () => {
      await store.initialise()
      const put: Store['put'] = (document, userData, options) => {
        const { id, revision } = document as StoredDocument
        if (options?.dryRun !== true) puts.push({ id, revision })
        return store.put(document, userData, options)
      }
      return { store: { ...methodsOf(store), put }, history: 'files', isBehind: false, noteOrder: () => undefined }
    },
    batchSize,
    count: (outcome) => counted.push(outcome),
    countBatch: () => undefined,
    databaseReport: new DatabaseReport(logger),
    log: logger,
  })
  publisher.start()
  t.teardown(() => publisher.stop())
  return { log, counted, puts, publisher, stop: () => publisher.stop() }
}
