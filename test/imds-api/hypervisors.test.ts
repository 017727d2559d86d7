/** What imds-api says of the hypervisors of the region, and how much of it is free. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import type { Database } from '../../src/imds-api/database/open.ts'
import { buildApiMetrics } from '../../src/imds-api/metrics.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { anApi, startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'

t.test('imds-api warns of hypervisors that no daemon has announced, and counts them', async (t) => {
  const redis = await startRedis(t)
  await redis.client.set(
    keysOf('gb1').announcement('hv-1'),
    JSON.stringify({ version: '1', instances: 0, seenAt: new Date().toISOString() }),
  )
  const api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const count = async () =>
    /^imds_api_unannounced_hypervisors (\d+)$/m.exec(await (await fetch(`${api.operatorUrl}/metrics`)).text())?.[1]
  await until(async () => (await count()) === '2', 'hv-2 and hv-3 to be counted')
  t.match(
    api.log.filter(({ msg }) => msg.startsWith('no daemon has announced these hypervisors')),
    [
      {
        level: 'warn',
        hypervisors: [
          { name: 'hv-2', servers: 0 },
          { name: 'hv-3', servers: 0 },
        ],
        all: 2,
      },
    ],
  )
})

t.test('metrics have the addresses and the RAM of the region, and how much of each is free', async (t) => {
  const api = await anApi(t)
  const { registry } = buildApiMetrics(api.database)
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

t.test('imds-api has every metric that the alerts use', (t) => {
  const { registry } = buildApiMetrics({} as Database)
  const alerts = readFileSync(new URL('../../deploy/alerts.yml', import.meta.url), 'utf8')
  const used = new Set(alerts.match(/(?<=expr: .*)\bimds_api_\w+/g))
  t.ok(used.size > 10)
  t.strictSame(
    [...used].filter((name) => registry.getSingleMetric(name) === undefined),
    [],
  )
  t.end()
})
