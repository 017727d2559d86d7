/**
 * Invariant 6 under invalid input, and contract D6 with fuzzed segments: short runs of `npm run fuzz` (test/fuzz) with a fixed
 * seed.
 */
import t from 'tap'
import { startFuzzHost } from '../fuzz/host.ts'
import { startPublisher } from '../fuzz/publisher.ts'
import { fuzzSockets } from '../fuzz/sockets.ts'
import { testDirectory } from '../support/test-directory.ts'
import { everyCut, fuzzCuts, randomCuts } from '../fuzz/cuts.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

const SEED = 4
const REQUESTS = 2_500

t.test('invariant 6: fuzzed guests and records cause no wrong response, crash, growth or leak', async (t) => {
  const host = await startFuzzHost(testDirectory(t))
  t.teardown(() => host.stop())
  const publisher = startPublisher(host, SEED)
  const { tried, statuses, failures } = await fuzzSockets(host, { seed: SEED, requests: REQUESTS, holds: 0 })
  const published = await publisher.stop()
  t.same([...failures, ...published.failures, ...(await host.problems())], [])
  t.equal(tried, REQUESTS)
  for (const status of [200, 400, 401, 403, 404, 405, 503])
    t.ok((statuses.get(status) ?? 0) > 10, `some responses have the status ${status}`)
})

t.test(
  'D6: no token travels past the hop limit, however its request is split and whatever precedes it',
  { skip: withoutNamespaces() },
  async (t) => {
    const { tried, failures } = await fuzzCuts(t, [...everyCut(false), ...randomCuts(SEED, 200)], 1)
    t.same(failures, [])
    t.ok(tried > 3_000, `${tried} connections`)
  },
)
