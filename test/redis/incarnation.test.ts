/** Each kind of store refuses what is for another incarnation of an id: it has another instance, or had it lately. */
import t from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { startKinds } from '../support/redis/kinds.ts'
import { openTestStore } from '../support/test-store.ts'

const { redis, kinds } = await startKinds(t)

for (const [kind, settingsOf] of Object.entries(kinds))
  t.test(`another incarnation of an instance is neither written nor removed (${kind})`, async (t) => {
    await redis.client.flushall()
    const store = await openTestStore(t, { ...settingsOf(t), ...(kind !== 'files' && { region: 'gb1' }) })
    const id = 'srv-abcde'
    const put = (revision: number, incarnation?: string) =>
      store.put(anInstance({ revision, ...(incarnation !== undefined && { incarnation }) }), 'none')
    t.match(await put(1, 'a'), { kind: 'published' })
    t.same(await put(1, 'b'), { kind: 'incarnation' }, 'also at a revision that would be stale')
    t.same(await put(2, 'b'), { kind: 'incarnation' })
    t.same(await store.remove(id, 9, { incarnation: 'b' }), { kind: 'incarnation' })
    t.match((await store.get(id))?.document, { revision: 1, incarnation: 'a' })
    t.match(await store.seal(id), { kind: 'sealed', revision: 2 })
    t.match(await put(3, 'a'), { kind: 'published' }, 'its own is written')
    t.match(await store.remove(id, 4, { incarnation: 'a' }), { kind: 'removed' })
    t.same(await put(5, 'b'), { kind: 'incarnation' }, 'after its removal')
    t.same(await store.remove(id, 9, { incarnation: 'b' }), { kind: 'incarnation' })
    t.match(await store.tombstones(), [{ id, revision: 4, sealedAt: /^20/ }])
    t.match(await put(5, 'a'), { kind: 'published', instance: { sealedAt: /^20/ } }, 'the seal stays')
    t.match(await put(6), { kind: 'published' }, 'a publisher that names none is not compared')
    t.match(await store.remove(id), { kind: 'removed', revision: 7 })
  })
