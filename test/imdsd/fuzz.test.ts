/** Invariant 6 under invalid input: a short run of `npm run fuzz` (test/fuzz) with a fixed seed. */
import t from 'tap'
import { startFuzzHost } from '../fuzz/host.ts'
import { fuzzSockets } from '../fuzz/sockets.ts'
import { testDirectory } from '../support/test-directory.ts'

const SEED = 4
const REQUESTS = 2_500

t.test('invariant 6: fuzzed guests cause no wrong response, crash, growth or leak', async (t) => {
  const host = await startFuzzHost(testDirectory(t))
  t.teardown(() => host.stop())
  const { tried, statuses, failures } = await fuzzSockets(host, { seed: SEED, requests: REQUESTS, holds: 0 })
  t.same(failures, [])
  t.equal(tried, REQUESTS)
  for (const status of [200, 400, 401, 403, 404, 405, 503])
    t.ok((statuses.get(status) ?? 0) > 10, `some responses have the status ${status}`)
})
