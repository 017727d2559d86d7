/**
 * Contract D6 with fuzzed segments: a short run of test/fuzz/cuts.ts.
 */
import t from 'tap'
import { everyCut, fuzzCuts, randomCuts } from '../fuzz/cuts.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

const SEED = 9

t.test(
  'D6: no token travels past the hop limit, however its request is split and whatever precedes it',
  { skip: withoutNamespaces() },
  async (t) => {
    const { tried, failures } = await fuzzCuts(t, [...everyCut(false), ...randomCuts(SEED, 200)], 1)
    t.same(failures, [])
    t.ok(tried > 3_000, `${String(tried)} connections`)
  },
)
