/** imds-api beside a real Redis: it says which hypervisors of the region no daemon has announced. */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'

t.test('imds-api warns of hypervisors that no daemon has announced, and counts them', async (t) => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
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
