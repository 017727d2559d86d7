/**
 * Memory stays constant over requests and changes, measured after a garbage collection. The long run has a million
 * requests and 100,000 changes, and forces a collection only at the end: `IMDS_TEST_LONG=1 TAP_TIMEOUT=3600 node
 * test/faults/memory.test.ts`.
 */
import { Agent, get } from 'node:http'
import t from 'tap'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { collectable } from '../support/programs/garbage.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'

const isLong = process.env['IMDS_TEST_LONG'] === '1'
/** In each round. */
const [REQUESTS, CHANGES] = isLong ? [100_000, 10_000] : [10_000, 1_000]
const ROUNDS = isLong ? 10 : 2
const INSTANCES = 20
const CLIENTS = 16
const MAX_GROWTH = 20 * 2 ** 20

const PATHS = [
  '/latest/meta-data/',
  '/latest/meta-data/hostname',
  '/latest/meta-data/tags/instance',
  '/latest/meta-data/public-keys/0/openssh-key',
  '/latest/user-data',
  '/latest/nothing',
]

/** The record of 127.0.0.N. Each revision removes a tag, and the user-data changes its size. */
function record(n: number, revision: number): Record<string, unknown> {
  return aLocalInstance(n, revision, {
    tags: { [`t${revision}`]: 'x'.repeat(revision % 200) },
    options: { instanceMetadataTags: 'enabled' },
  })
}

t.test('memory does not grow with requests and changes', { timeout: isLong ? 3_600_000 : 300_000 }, async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const { env, within, collect } = await collectable()
  const daemon = await startDaemon(
    t,
    { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1', ...env },
    within,
  )

  const address = (i: number) => `127.0.0.${1 + (i % INSTANCES)}`
  const statuses = new Map<number, number>()
  const sendRequests = async () => {
    const agents = Array.from({ length: CLIENTS }, () => new Agent({ keepAlive: true, maxSockets: 1 }))
    let sent = 0
    await Promise.all(
      agents.map(async (agent, client) => {
        while (sent < REQUESTS) {
          const i = sent++
          const path = PATHS[i % PATHS.length]!
          const status = await new Promise<number>((resolve, reject) => {
            get(
              {
                port: daemon.guestPort,
                host: '127.0.0.1',
                path,
                localAddress: address(client),
                agent: i % 10 === 0 ? false : agent,
              },
              (response) => {
                response.resume().on('end', () => resolve(response.statusCode ?? 0))
              },
            ).on('error', reject)
          })
          statuses.set(status, (statuses.get(status) ?? 0) + 1)
        }
      }),
    )
    for (const agent of agents) agent.destroy()
  }
  let revision = 0
  const publishChanges = async () => {
    for (const last = revision + CHANGES / INSTANCES; revision < last;) {
      revision++
      await Promise.all(
        Array.from({ length: INSTANCES }, (_, i) =>
          store.put(record(i + 1, revision), Buffer.alloc(1 + (revision % 4096), 'x')),
        ),
      )
    }
    for (let i = 0; i < INSTANCES; i++) {
      await until(
        async () =>
          (await daemon.operator(`/instances/srv-n${i + 1}`)).body.toString().includes(`"revision":${revision}`),
        'the last change',
      )
    }
  }
  await publishChanges()
  statuses.clear()

  const measure = async (when: string) => {
    const [resident, heap] = [
      await daemon.metric('process_resident_memory_bytes'),
      await daemon.metric('nodejs_heap_size_used_bytes'),
    ]
    const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`
    t.comment(`${when}: ${mib(resident)} resident, ${mib(heap)} of heap in use`)
    return { resident, heap }
  }
  await Promise.all([sendRequests(), publishChanges()])
  await collect()
  const first = await measure('after the first round')
  for (let round = 1; round <= ROUNDS; round++) {
    await Promise.all([sendRequests(), publishChanges()])
    if (!isLong || round === ROUNDS) await collect()
    await measure(`after ${round * REQUESTS} requests and ${round * CHANGES} changes more`)
  }
  const last = await measure('at the end')
  t.ok(last.heap - first.heap < MAX_GROWTH, `the heap in use grew by ${last.heap - first.heap} bytes`)
  t.ok(last.resident - first.resident < MAX_GROWTH, `resident memory grew by ${last.resident - first.resident} bytes`)
  t.same([...statuses.keys()].sort(), [200, 404])
})
