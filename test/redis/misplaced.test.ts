/** Mistakes of a publisher that would leave a guest without metadata: another region, or no hypervisor. */
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, aStore, record, serves } from '../support/redis/shapes.ts'
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
