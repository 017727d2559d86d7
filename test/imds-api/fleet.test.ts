/** The life of a hypervisor with imds-api and a compute system: it is drained, evacuated and removed. */
import t from 'tap'
import { evacuateServer, findServersOn } from '../../src/imds-api/changes/evacuation.ts'
import { changeMaintenanceEvents } from '../../src/imds-api/changes/maintenance.ts'
import { beginLiveMigration } from '../../src/imds-api/changes/server-placement.ts'
import { setDrained, readHypervisorUsage, placeServer } from '../../src/imds-api/changes/hypervisors.ts'
import { buildRegionReader } from '../../src/imds-api/conditions/region-state.ts'
import { buildApiMetrics } from '../../src/imds-api/service/metrics.ts'
import { aRegion } from '../support/fixtures/region.ts'
import { anApi, rowOf } from '../support/programs/api.ts'

const NEW_SERVER = { image: 'img-deb12', zone: 'gb1-a' }
const RAM = 1024
const region = aRegion({
  accounts: aRegion().accounts.map((account) => ({ ...account, ram_limit: 65_536 })),
  hypervisors: [
    { name: 'hv1', zone: 'gb1-a', ram: 16_384 },
    { name: 'hv2', zone: 'gb1-a', ram: 4096 },
    { name: 'hv3', zone: 'gb1-a', ram: 2048 },
    { name: 'hv4', zone: 'gb1-b', ram: 65_536 },
  ],
})

t.test('with a compute system', async (t) => {
  const api = await anApi(t, { region, compute: 'reported' })
  const { db } = api.database
  const isAny = () => true
  const create = async () =>
    (await api.call('POST', '/1.0/servers', NEW_SERVER)) as { status: number; body: { id: string } }
  const drained = (name: string, isDrained = true) => db.transaction().execute((tx) => setDrained(tx, name, isDrained))
  const placeOf = async (id: string) => {
    const { hypervisor, migrating_to } = await rowOf(db, 'servers', id)
    return [hypervisor, migrating_to]
  }
  const activate = () => db.updateTable('servers').set({ status: 'active' }).execute()
  const move = (
    id: string,
    change: { to?: string[]; begin?: boolean; dryRun?: boolean; name?: string; planned?: Map<string, number> } = {},
  ) =>
    evacuateServer({ db, accounts: api.accounts }, id, {
      ...{ name: 'hv1', to: [], begin: false, dryRun: false, retrySeconds: 60, planned: new Map<string, number>() },
      ...change,
    })
  t.afterEach(async () => {
    await db.deleteFrom('compute_actions').execute()
    await db.updateTable('servers').set({ deleted_at: new Date(), status: 'deleted', migrating_to: null }).execute()
    await db.updateTable('hypervisors').set({ drained_at: null }).execute()
  })

  await t.test('a drained hypervisor gets no new servers and no live migrations, and keeps its own', async (t) => {
    const { body: first } = await create()
    t.same(await placeOf(first.id), ['hv1', null])
    t.same([await drained('hv1'), await drained('hv1')], [true, false], 'again: nothing changes')
    const { body: second } = await create()
    t.same(await placeOf(second.id), ['hv2', null], 'although hv1 has more free RAM')
    await activate()
    await t.rejects(beginLiveMigration({ db, accounts: api.accounts, retrySeconds: 60 }, second.id, 'hv1', isAny), {
      message: /hv1 is drained/,
    })
    t.match(await readHypervisorUsage(db), [
      { name: 'hv1', zone: 'gb1-a', ram: 16_384, free: 16_384 - RAM, servers: 1, drained_at: Date },
      { name: 'hv2', servers: 1, free: 4096 - RAM, drained_at: null },
      { name: 'hv3' },
      { name: 'hv4', zone: 'gb1-b' },
    ])
    for (const name of ['hv2', 'hv3']) await drained(name)
    t.match(await create(), { status: 503, body: { error_name: 'insufficient_capacity' } })
    await drained('hv1', false)
    t.same(await placeOf((await create()).body.id), ['hv1', null])
    await t.rejects(drained('hv9'), { message: 'the region has no hypervisor hv9: it has hv1, hv2, hv3, hv4' })
  })

  await t.test('servers move to the hypervisor of their zone with the most free RAM while there is some', async (t) => {
    const ids: string[] = []
    for (let i = 0; i < 8; i++) ids.push((await create()).body.id)
    await activate()
    await drained('hv1')
    const planned = new Map<string, number>()
    for (const id of ids.slice(0, 6)) await move(id, { dryRun: true, planned })
    t.same(
      [...planned],
      [
        ['hv2', 4 * RAM],
        ['hv3', 2 * RAM],
      ],
      'a dry run counts what it has given away',
    )
    t.same(await findServersOn(db, 'hv1'), [...ids].sort(), 'and changes nothing')
    t.same(await move(ids[0]!, { to: ['hv3'] }), { kind: 'moved', from: ['hv1'], to: ['hv3'] })
    for (const id of ids.slice(1, 6)) await move(id)
    await t.rejects(move(ids[6]!), { message: /no other hypervisor in the zone of .* has 1024 MB of RAM free/ })
    const counts = Map.groupBy(await Promise.all(ids.map(placeOf)), ([name]) => name)
    t.same([...counts].map(([name, { length }]) => `${String(name)} ${length}`).sort(), ['hv1 2', 'hv2 4', 'hv3 2'])
    t.same(await move(ids[0]!), { kind: 'unchanged', from: ['hv3'], to: ['hv3'] }, 'again: nothing to do')
  })

  await t.test('live migrations begin, and end on the other hypervisor, also those to the evacuated one', async (t) => {
    const [first, second] = [(await create()).body.id, (await create()).body.id]
    await t.rejects(move(first, { begin: true }), { message: `${first} is creating` })
    await activate()
    t.same(await move(first, { begin: true, to: ['hv2'] }), { kind: 'begun', from: ['hv1'], to: ['hv1', 'hv2'] })
    t.match(await move(first, { begin: true }), { kind: 'unchanged' })
    await move(second, { to: ['hv2'] })
    await beginLiveMigration({ db, accounts: api.accounts, retrySeconds: 60 }, second, 'hv1', isAny)
    t.same(await move(first), { kind: 'moved', from: ['hv1', 'hv2'], to: ['hv2'] })
    t.same(await move(second), { kind: 'moved', from: ['hv2', 'hv1'], to: ['hv2'] })
    t.same(
      [await placeOf(first), await placeOf(second)],
      [
        ['hv2', null],
        ['hv2', null],
      ],
    )
  })

  await t.test('while a change uses one hypervisor, a server is moved to another one without waiting', async (t) => {
    const { body: server } = await create()
    await activate()
    t.same(await placeOf(server.id), ['hv1', null])
    const taken = await db.transaction().execute(async (tx) => {
      const { name } = (await placeServer(tx, { zoneId: 'zon-aaaa1', ram: RAM, except: 'hv1' }))!
      t.equal((await move(server.id)).kind, 'moved')
      return name
    })
    t.same([taken, await placeOf(server.id)], ['hv2', ['hv3', null]])
  })

  await t.test('a server whose action is being carried out is not moved', async (t) => {
    const { id } = (await create()).body
    await db.updateTable('compute_actions').set({ given_out_at: new Date(), given_to: 'hv1' }).execute()
    await t.rejects(move(id), { message: /^hv1 carries out an action of / })
    await db
      .updateTable('compute_actions')
      .set({ given_out_at: new Date(Date.now() - 3_600_000) })
      .execute()
    t.match(await move(id), { kind: 'moved' }, 'its agent has died: the target gets the action')
  })

  await t.test('the events of a server take at most 8,192 bytes', async (t) => {
    const { id } = (await create()).body
    const announce = (n: number) => {
      const event = { id: `evt-${n}`, code: 'system-reboot', notBefore: '2026-11-20T15:04:05Z' }
      const change = { kind: 'schedule', event: { ...event, description: 'x'.repeat(1_024) } } as const
      return db.transaction().execute((tx) => changeMaintenanceEvents(tx, id, change))
    }
    for (let n = 1; n <= 7; n++) await announce(n)
    await t.rejects(announce(8), { message: /would take more than 8192 bytes: give shorter descriptions/ })
  })
})

t.test('metrics have the addresses and the RAM of the region, and how much of each is free', async (t) => {
  const api = await anApi(t)
  const { database } = api
  const readRegion = buildRegionReader(database.db, () => Promise.reject(new Error('away')))
  const { registry } = buildApiMetrics({ database, readRegion, waits: () => 0 })
  const read = async () => {
    const text = await registry.metrics()
    const value = (name: string) =>
      Number(
        text
          .split('\n')
          .find((line) => line.startsWith(`${name} `))
          ?.split(' ')[1],
      )
    return {
      pool: value('imds_api_pool_addresses{kind="private_ipv4"}'),
      addresses: ['mac', 'private_ipv4', 'public_ipv4'].map((kind) =>
        value(`imds_api_pool_free_addresses{kind="${kind}"}`),
      ),
      ram: [value('imds_api_ram_bytes'), value('imds_api_ram_free_bytes')],
    }
  }
  const before = await read()
  t.match(await api.call('POST', '/1.0/servers', { image: 'img-deb12', server_type: 'typ-small', cloud_ip: true }), {
    status: 202,
  })
  const after = await read()
  t.equal(after.pool, 65_534)
  t.strictSame(
    after.addresses.map((free, i) => before.addresses[i]! - free),
    [1, 1, 1],
  )
  t.strictSame(before.ram, [144 * 2 ** 30, 144 * 2 ** 30])
  t.strictSame(after.ram, [144 * 2 ** 30, 143 * 2 ** 30])
  await api.database.db.updateTable('hypervisors').set({ drained_at: new Date() }).where('name', '=', 'hv-1').execute()
  t.equal((await read()).ram[0], 80 * 2 ** 30, 'a drained hypervisor gets no new servers')
})
