/** The rules of revisions, seals and addresses are the same in Redis (publish.lua) and in a directory of files (rules.ts). */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import type { Publisher } from '../../src/store/publisher.ts'
import { random } from '../support/fixtures/generated-records.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'

const SEED = 41
const STEPS = 400

t.test(`Redis and files give the same answers to ${String(STEPS)} random changes (seed ${String(SEED)})`, async (t) => {
  const redis = await startRedis(t)
  const stores: readonly Publisher[] = [
    await openStore({ url: redis.url, region: 'gb1' }),
    await openStore({ url: `file:${testDirectory(t)}` }),
  ]
  t.teardown(() => Promise.all(stores.map((store) => store.close())))
  const next = random(SEED)
  const below = (count: number) => Math.floor(next() * count)
  const kinds: Record<string, number> = {}
  for (let step = 0; step < STEPS; step++) {
    const id = `srv-${String(below(4))}`
    const revision = 1 + below(6) + Math.floor(step / 25)
    const address = ['10.0.0.1/24', '10.0.0.2/24', 'fd00::/64', 'fd00::5/128', 'fd00:1::1/128'][below(5)]!
    const addresses = address.includes(':') ? { ipv6Addresses: [address] } : { ipv4Addresses: [address] }
    const record = anInstance({
      id,
      revision,
      interfaces: [{ id: `int-${id}`, macAddress: `02:24:19:00:00:0${id.slice(-1)}`, ...addresses }],
      ...(below(6) === 0 && { sealedAt: '2026-11-20T15:04:05Z' }),
    })
    const userData = ([Buffer.from('one'), Buffer.from('two'), 'none', 'keep'] as const)[below(4)]!
    const options = { dryRun: below(5) === 0 }
    const sealedAt = '2026-11-26T00:00:00Z'
    const given = below(2) === 0 ? revision : undefined
    const seal = given !== undefined && below(4) === 0 && { sealedAt } // to restore a tombstone
    const change = (
      [
        (store) => store.put(record, userData, options),
        (store) => store.put(record, userData, options),
        (store) => store.put(record, userData, options),
        (store) => store.remove(id, given, { ...options, ...seal }),
        (store) => store.unseal(id),
      ] satisfies ((store: Publisher) => Promise<object>)[]
    )[below(5)]!
    const [inRedis, inFiles] = [await change(stores[0]!), await change(stores[1]!)]
    const { kind } = inRedis as { readonly kind: string }
    kinds[kind] = (kinds[kind] ?? 0) + 1
    const [before, after] = [
      [{ ...inRedis, unannounced: [] }, await stores[0]!.get(id)], // only Redis has the names of daemons
      [{ ...inFiles, unannounced: [] }, await stores[1]!.get(id)],
    ]
    if (JSON.stringify(before) === JSON.stringify(after)) continue
    t.strictSame(after, before, `step ${String(step)}: ${id} at ${String(revision)}`)
    break
  }
  for (const kind of ['published', 'unchanged', 'stale', 'address-owned', 'removed', 'absent'])
    t.ok((kinds[kind] ?? 0) > 5, `${kind}: ${JSON.stringify(kinds)}`)
})
