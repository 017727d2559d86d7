/** The API under invalid input: a short run of `npm run fuzz -- api` (test/fuzz/imds-api) with a fixed seed. */
import t from 'tap'
import { startApiHost } from '../fuzz/imds-api/host.ts'
import { fuzzApi } from '../fuzz/imds-api/run.ts'

const SEED = 4
const REQUESTS = 1_000

t.test('fuzzed requests get documented responses, and nothing of another account', async (t) => {
  const { tried, statuses, failures } = await fuzzApi(await startApiHost(t), { seed: SEED, requests: REQUESTS })
  t.same(failures, [])
  t.equal(tried, REQUESTS)
  for (const status of [200, 201, 202, 400, 401, 403, 404, 405, 409, 412, 422])
    t.ok((statuses.get(status) ?? 0) > 3, `some responses have the status ${status}`)
})
