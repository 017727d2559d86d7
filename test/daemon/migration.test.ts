/**
 * Live migration: two hypervisors follow one Redis. The record names both while the guest's link moves from one to the
 * other, and then only the new one. The guest reads its tree without a pause.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary, type Load } from '../support/load/load.ts'
import { makeHypervisor, withoutNamespaces, type Hypervisor } from '../support/netns/namespaces.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { startRedis } from '../support/redis/redis.ts'

const OPERATOR = '127.0.0.1:9169'
const LINK = { address: '10.0.0.2/30', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:ee', device: 'guest' }
const MIGRATIONS = 5
/** The timeout is short: a request that is in flight when the link moves gets no response. */
const LOAD: Load = { clients: 4, keepAlive: false, patienceMs: 5_000 }
/** The least number of requests between two steps. */
const REQUESTS_PER_STEP = 200

interface Side {
  readonly name: string
  readonly hypervisor: Hypervisor
  readonly instances: () => Promise<number>
}

t.test('G3: a guest that migrates reads its tree without a failure', { skip: withoutNamespaces() }, async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'imds-socket-'))
  t.teardown(() => {
    rmSync(directory, { recursive: true, force: true })
  })
  const socketPath = join(directory, 'redis')
  const redis = await startRedis(['--unixsocket', socketPath])
  t.teardown(() => redis.stop())
  const store = await openStore({ url: redis.url, region: 'gb1' })
  t.teardown(() => store.close())

  const startSide = async (name: string): Promise<Side> => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    await hypervisor.forward(redis.port, socketPath)
    const env = {
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: name,
      IMDS_LISTEN: '169.254.169.254:80',
      IMDS_OPERATOR_LISTEN: OPERATOR,
    }
    const daemon = await startDaemon(env, hypervisor.within)
    t.teardown(() => daemon.stop())
    const metrics = () => must([...hypervisor.within, 'curl', '--silent', '--fail', `http://${OPERATOR}/metrics`])
    return {
      name,
      hypervisor,
      instances: async () => Number(/^imds_view_instances (\d+)$/m.exec((await metrics()).toString())?.[1]),
    }
  }
  let revision = 0
  const publish = async (...on: Side[]) => {
    await store.put(anInstance({ revision: ++revision, hypervisors: on.map(({ name }) => name) }))
    for (const { hypervisor } of on)
      await must([
        ...hypervisor.within,
        process.execPath,
        IMDSCTL,
        'wait',
        'srv-abcde',
        '--revision',
        String(revision),
        '--operator',
        OPERATOR,
      ])
  }

  let [from, to] = [await startSide('hv1'), await startSide('hv2')]
  await publish(from)
  const guest = await from.hypervisor.addGuest(LINK)
  for (let i = 0; i < MIGRATIONS; i++) {
    const load = await startLoad(guest, LOAD)
    await load.more(REQUESTS_PER_STEP)
    await publish(from, to)
    await load.more(REQUESTS_PER_STEP)
    const fromMs = Date.now()
    await from.hypervisor.handOver(LINK, to.hypervisor)
    const toMs = Date.now()
    await load.more(REQUESTS_PER_STEP)
    await publish(to)
    await until(async () => (await from.instances()) === 0, `${from.name} to drop the instance`)
    await load.more(REQUESTS_PER_STEP)
    const figures = await load.stop()
    t.comment(`from ${from.name} to ${to.name}: ${summary(figures)}`)
    t.same(
      figures.failed.filter(({ startedMs, endedMs }) => startedMs > toMs || endedMs < fromMs),
      [],
      'only requests in flight during the move fail',
    )
    t.same(
      figures.failed.filter(({ what }) => /^\d+$/.test(what)),
      [],
      'no request is refused',
    )
    t.same(figures.answers['/latest/meta-data/instance-id'], ['srv-abcde'])
    t.equal(await to.instances(), 1)
    ;[from, to] = [to, from]
  }
})
