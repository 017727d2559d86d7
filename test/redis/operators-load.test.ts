/** What guests and other operators see while one operator asks in a loop, and what the store does. */
import t from 'tap'
import { request, startDaemon, until, type Answer } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const ID = '/latest/meta-data/instance-id'
/** One caller's loops at the same time. */
const LOOPS = 16

t.test('an operator that asks in a loop takes no response from guests or others, little of the store', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  await store.put(aLocalInstance(1, 1, { id: 'srv-a' }))
  const settings = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' }
  const daemon = await startDaemon(t, settings)
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')

  let isOver = false as boolean // TypeScript does not see that the end of the test sets it
  const statuses: Record<string, Set<unknown>> = {}
  /** Asks until the test is over. Statuses are counted by `who`. Returns the number of answers. */
  const loop = async (who: string, ask: (i: number) => Promise<Answer>) => {
    const seen = (statuses[who] ??= new Set())
    let answers = 0
    for (; !isOver; answers++)
      seen.add((await ask(answers).catch((error: unknown) => ({ status: String(error) }))).status)
    return answers
  }
  const asked = [
    (n: number) => `/explain?address=10.${n >> 8}.${n & 255}.9`,
    (n: number) => `/instances/srv-${n}?reason=`,
    () => '/explain?id=srv-a',
  ]
  const commands = async () => Number(/total_commands_processed:(\d+)/.exec(await redis.client.info('stats'))?.[1])
  const before = await commands()
  const startedMs = performance.now()
  const looping = Array.from({ length: LOOPS }, (_, i) =>
    loop('the one', (n) => daemon.operator(asked[i % asked.length]!(n * LOOPS + i))),
  )
  const guests = [1, 2].map(() => loop('guests', () => daemon.get(ID)))
  const others = [
    loop('Prometheus', () => request(daemon.operatorPort, '/metrics')),
    loop('the unix socket', () => daemon.operator('/readyz')),
  ]
  const doctor = (async () => {
    for (let i = 0; i < 2; i++)
      await imdsctl(['--json', 'doctor', '--operator', daemon.operatorSocket], { env: settings })
  })()
  await doctor
  isOver = true
  const [theirs, served, other] = await Promise.all([looping, guests, others].map((all) => Promise.all(all)))
  const seconds = (performance.now() - startedMs) / 1000
  t.comment(`${seconds.toFixed(1)} s:`, { theirs, served, other }, `${(await commands()) - before} commands`)

  t.same([...statuses['guests']!], [200])
  t.same([...statuses['Prometheus']!], [200])
  t.same([...statuses['the unix socket']!], [200])
  t.same([...statuses['the one']!].sort(), [200, 404], 'it is answered too')
  const ofStore = (await commands()) - before
  t.ok(ofStore < 300 + 60 * seconds, `the store was asked at a bounded rate: ${ofStore} times`)
})
