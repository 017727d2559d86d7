/**
 * A daemon that is killed while changes arrive: the next start gives no guest an older state than it has had (contract
 * E3), with the store and without it.
 */
import { once } from 'node:events'
import t from 'tap'
import { startDaemon, unlessReset, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

/** The daemon is killed when so many of the changes were seen. test/world kills it at any other moment. */
const SEEN = 3
const AWAY = 'redis://127.0.0.1:1'
const ID = '/latest/meta-data/instance-id'

t.test('E3: a killed daemon takes back no move, seal, removal or narrower option seen or confirmed', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const env = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1', IMDS_STATE_DIR: testDirectory(t) }
  const record = (id: string, revision: number, host: number, change: Record<string, unknown> = {}) =>
    anInstance({
      id,
      revision,
      interfaces: loopback(1, { ipv4Addresses: [`127.0.${host >> 8}.${host & 255}/8`] }),
      ...change,
    })
  const start = (change: Record<string, string> = {}) => startDaemon(t, { ...env, ...change })
  const kill = async (daemon: TestDaemon) => {
    daemon.process.kill('SIGKILL')
    await once(daemon.process, 'exit')
  }

  const daemon = await start()
  let loadRevision = 0
  const base = 2 * 256
  const id = (what: string) => `srv-${what}`
  const at = (n: number) => `127.0.2.${n}`
  /** What each guest may read before its change, the change, and how the guest sees that it was made. */
  const changes: {
    what: string
    path: string
    from: string
    change: () => Promise<unknown>
    isMade: (status: number, body: string) => boolean
  }[] = [
    {
      what: 'move',
      path: ID,
      from: at(1),
      isMade: (_status, body) => body !== id('old'),
      change: async () => {
        await store.put(record(id('old'), 2, base + 7))
        await store.put(record(id('new'), 1, base + 1))
      },
    },
    {
      what: 'seal',
      path: '/latest/user-data',
      from: at(2),
      isMade: (status) => status === 404,
      change: () => store.seal(id('seal')),
    },
    {
      what: 'removal',
      path: ID,
      from: at(3),
      isMade: (status) => status === 503,
      change: () => store.remove(id('gone')),
    },
    {
      what: 'tokens',
      path: ID,
      from: at(4),
      isMade: (status) => status === 401,
      change: () => store.put(record(id('tokens'), 2, base + 4, { options: { httpTokens: 'required' } })),
    },
    {
      what: 'endpoint',
      path: ID,
      from: at(5),
      isMade: (status) => status === 403,
      change: () => store.put(record(id('closed'), 2, base + 5, { options: { httpEndpoint: 'disabled' } })),
    },
    {
      what: 'user-data',
      path: '/latest/user-data',
      from: at(6),
      isMade: (_status, body) => body === 'new',
      change: () => store.put(record(id('data'), 2, base + 6), Buffer.from('new')),
    },
  ]
  for (const [n, what] of ['old', 'seal', 'gone', 'tokens', 'closed', 'data'].entries())
    await store.put(record(id(what), 1, base + n + 1), Buffer.from('S3CRET'))
  const see = async (from: TestDaemon, { path, from: address, isMade }: (typeof changes)[number]) => {
    const answer = await unlessReset(from.get(path, address))
    return answer !== undefined && isMade(answer.status, answer.body.toString())
  }
  await until(
    async () => (await Promise.all(changes.map(async (one) => await see(daemon, one)))).every((isMade) => !isMade),
    'the instances',
  )

  // Large user-data that changes all the time, so that the journal is rewritten all the time.
  const load = { isOn: true }
  const loading = (async () => {
    while (load.isOn) await store.put(record('srv-load', ++loadRevision, 256 + 1), Buffer.alloc(12_000, loadRevision))
  })()
  const seen = new Set<string>()
  const changing = (async () => {
    for (const { change } of changes) await change()
  })()
  while (seen.size < SEEN) {
    for (const one of changes) if (!seen.has(one.what) && (await see(daemon, one))) seen.add(one.what)
    const confirmed = await daemon.operator(`/instances/${id('seal')}`)
    if (confirmed.status === 200 && (JSON.parse(confirmed.body.toString()) as { revision: number }).revision >= 2)
      seen.add('seal')
  }
  await kill(daemon)
  load.isOn = false
  await Promise.all([loading, changing])

  const without = await start({ IMDS_STORE: AWAY })
  for (const one of changes) if (seen.has(one.what)) t.ok(await see(without, one), `without the store: ${one.what}`)
  t.equal(
    (await without.get(ID, '127.0.1.1')).body.toString(),
    'srv-load',
    'an instance that was served is served again',
  )
  await kill(without)
  const again = await start()
  for (const one of changes) if (seen.has(one.what)) t.ok(await see(again, one), `with the store: ${one.what}`)
})
