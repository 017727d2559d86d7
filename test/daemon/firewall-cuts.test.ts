/**
 * Contract D6 however a guest's segments are cut: a short run of what `npm run fuzz` sends.
 */
import t from 'tap'
import { everyCut, fuzzCuts, randomCuts } from '../fuzz/cuts.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

const SEED = 9

t.test('D6: no token travels past the hop limit, however its request is cut and whatever precedes it', { skip: withoutNamespaces() }, async (t) => {
  const { tried, failures } = await fuzzCuts(t, [...everyCut(false), ...randomCuts(SEED, 200)], 1)
  t.same(failures, [])
  t.ok(tried > 3_000, `${String(tried)} connections`)
})
