/**
 * Mistakes of a publisher that would leave a guest without metadata: another region, a misspelt or missing hypervisor,
 * an empty store.
 */
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, aStore, connected, record, SECRET, serves, urlAs } from '../support/redis/shapes.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
const KEYS = keysOf('gb1')
const redis = await startRedis(t)
t.beforeEach(async () => {
  await redis.client.flushall()
})

const inRegion = (region: string, input: unknown, ...args: string[]) =>
  imdsctl(args, { input: JSON.stringify(input), env: { IMDS_STORE: redis.url, IMDS_REGION: region } })

async function served(t: Test) {
  const daemon = await aDaemon(t, redis.url)
  const store = await aStore(t, redis.url)
  await store.put(record(1))
  await serves(daemon, 1)
  return { daemon, store }
}

t.test('imdsctl, the library and the script refuse a record of another region; the guest stays served', async (t) => {
  const { daemon, store } = await served(t)
  t.match(await inRegion('gb1', record(2, { region: 'gb2' }), 'put', '-'), {
    status: 65,
    stderr: /\/region must be gb1, the region of this store/,
  })
  t.match(await store.put(record(2, { region: 'gb2' })), { kind: 'invalid', faults: [{ path: '/region' }] })
  const script = (...args: string[]) => redis.client.eval(SCRIPT, 1, ...args) as Promise<string[]>
  t.same(await script(KEYS.region, 'put', JSON.stringify(record(2, { region: 'gb2' })), 'keep'), [
    'refused',
    'invalid',
    'region is not gb1, the region of the key',
  ])
  t.same(await script(KEYS.region, 'put', JSON.stringify(record(2, { hypervisors: [] })), 'keep'), [
    'refused',
    'invalid',
    'interfaces and hypervisors must be lists that are not empty',
  ])
  for (const key of ['imds:{}', 'imds:gb1', 'x{gb1}', 'imds:{g b}'])
    t.same(await script(key, 'put', JSON.stringify(record(2)), 'keep'), [
      'refused',
      'invalid',
      'the key is not imds:{REGION}',
    ])
  await serves(daemon, 1)
  t.match(await inRegion('gb1', record(2, { hypervisors: [] }), 'put', '-'), {
    status: 65,
    stderr: /\/hypervisors must not have fewer than 1 items/,
  })
  for (const region of ['', 'g b'])
    t.match(await inRegion(region, record(2), 'put', '-'), { status: 69, stderr: /Redis needs the name of the region/ })
  t.same(
    (await redis.client.keys('*')).filter((key) => !key.startsWith('imds:{gb1}')),
    [],
  )
})

t.test('imdsctl warns about a hypervisor without a daemon, and the daemon that loses a guest logs that', async (t) => {
  const { daemon } = await served(t)
  const put = await inRegion('gb1', record(2, { hypervisors: ['HV1'] }), 'put', '-')
  t.match(put, {
    status: 0,
    stdout: 'published srv-n1 revision 2\n',
    stderr: 'imdsctl: warning: no daemon has announced hypervisor HV1: check the name (imdsctl hypervisors)\n',
  })
  t.match(
    JSON.parse((await inRegion('gb1', record(3, { hypervisors: ['hv1', 'HV1'] }), '--json', 'put', '-')).stdout),
    {
      result: 'published',
      warnings: [/hypervisor HV1:/],
    },
  )
  t.match(await inRegion('gb1', record(4), 'put', '-'), { status: 0, stderr: '' }, 'hv1 has a daemon')
  await serves(daemon, 4)
  await inRegion('gb1', record(5, { hypervisors: ['HV1'] }), 'put', '-')
  await until(
    () =>
      daemon.log.some(
        ({ level, msg, instance }) =>
          level === 'info' && instance === 'srv-n1' && msg.startsWith('instance left this hypervisor'),
      ),
    'the log line',
  )
})

t.test('a daemon that may not announce itself serves its guests and has the reason as a condition', async (t) => {
  await redis.client.call('ACL', 'SETUSER', 'reader', 'on', '>secret', '~*', '&*', '+@all', '-set')
  const daemon = await aDaemon(t, urlAs('reader', redis), SECRET)
  const store = await aStore(t, redis.url)
  t.match(await store.put(record(1)), { kind: 'published', unannounced: ['hv1'] })
  await serves(daemon, 1)
  await redis.client.call('CLIENT', 'KILL', 'USER', 'reader')
  await until(
    () => daemon.log.filter(({ msg }) => msg === 'the store is connected').length === 2,
    'the daemon to reconnect',
  )
  await store.put(record(2))
  await serves(daemon, 2)
  t.match(await daemon.condition('store-not-written'), /NOPERM/)
})

t.test('a new region without instances is ready once it is initialised', async (t) => {
  const daemon = await aDaemon(t, redis.url, {}, { IMDS_RESYNC_SECONDS: '1' })
  await connected(daemon)
  await until(
    () =>
      daemon.log.some(({ msg, remedy }) => msg.includes('has nothing of') && String(remedy).includes('imdsctl init')),
    'the warning',
  )
  t.equal((await daemon.operator('/readyz')).status, 503)
  t.match(await inRegion('gb1', null, 'init'), {
    status: 0,
    stdout: 'the region is initialised: daemons become ready with it\n',
  })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  t.match(JSON.parse((await daemon.operator('/readyz')).body.toString()), { ready: true, instances: 0 })
  t.match(await inRegion('gb1', null, 'init'), { status: 0, stdout: 'nothing to do: the store is ready for use\n' })
})
