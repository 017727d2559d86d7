/**
 * Live migration: two hypervisors follow one Redis. The record names both while the guest's link moves from one to the
 * other, and then only the new one. The guest reads its tree without a pause.
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { runExample } from '../support/programs/example.ts'
import { startDaemon } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary, type Load } from '../support/load/load.ts'
import { makeHypervisor, withoutNamespaces, type Hypervisor } from '../support/netns/namespaces.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { startRedis } from '../support/redis/redis.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'
import { shortDirectory } from '../support/test-directory.ts'

const LINK = { address: '10.0.0.2/30', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:ee', device: 'guest' }
/** The timeout is short: a request that is in flight when the link moves gets no response. */
const LOAD: Load = { clients: 4, keepAlive: false, patienceMs: 5_000 }
/** The least number of requests between two steps. */
const REQUESTS_PER_STEP = 200

interface Side {
  readonly hypervisor: Hypervisor
  readonly operatorSocket: string
  readonly stop: () => Promise<unknown>
}

/** Two hypervisors that follow one Redis. */
async function startSides(t: Test) {
  const directory = shortDirectory(t)
  const socketPath = join(directory, 'redis')
  const redis = await startRedis(t, ['--unixsocket', socketPath])
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })

  const startSide = async (name: string): Promise<Side> => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    await hypervisor.forward(redis.port, socketPath)
    const env = {
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: name,
      IMDS_LISTEN: '169.254.169.254:80',
    }
    const daemon = await startDaemon(t, env, hypervisor.within)
    return { hypervisor, operatorSocket: daemon.operatorSocket, stop: () => daemon.stop() }
  }
  return { redis, store, sides: [await startSide('hv1'), await startSide('hv2')] as [Side, Side] }
}

/** Waits until the daemon of a hypervisor serves the instance, as at the end of a live migration. */
const waitOn = ({ hypervisor, operatorSocket: socket }: Side, ...revision: readonly string[]) =>
  must([...hypervisor.within, process.execPath, IMDSCTL, 'wait', 'srv-abcde', ...revision, '--operator', socket])

t.test(
  'G3: a hypervisor is replaced while its guest asks, and no request is refused',
  { skip: withoutNamespaces() },
  async (t) => {
    const {
      redis,
      store,
      sides: [from, to],
    } = await startSides(t)
    await store.put(anInstance({ hypervisors: ['hv1'] }))
    const guest = await from.hypervisor.addGuest(LINK)
    await waitOn(from, '--revision', '1')
    const load = await startLoad(guest, LOAD)
    await load.more(REQUESTS_PER_STEP)
    let [fromMs, toMs] = [0, 0]
    const migrate = async ([id]: readonly string[]) => {
      t.equal(id, 'srv-abcde')
      await waitOn(to, '--revision', '2')
      fromMs = Date.now()
      await from.hypervisor.handOver(LINK, to.hypervisor)
      toMs = Date.now()
      await load.more(REQUESTS_PER_STEP)
    }
    const ssh = async (args: readonly string[]) => {
      t.match(args.join(' '), /^hv1 systemctl disable --now /)
      await from.stop()
    }
    const replaced = await runExample(t, executed('docs/operations/jobs.md', 'replace'), {
      programs: { ssh, migrate },
      commands: { imdsctl: [process.execPath, IMDSCTL, '--store', redis.url, '--region', 'gb1'] },
    })
    t.equal(replaced.status, 0, replaced.stderr)
    await load.more(REQUESTS_PER_STEP)
    const figures = await load.stop()
    t.comment(summary(figures))
    t.same(
      figures.failed.filter(
        ({ what, startedMs, endedMs }) => /^\d+$/.test(what) || startedMs > toMs || endedMs < fromMs,
      ),
      [],
      'only requests in flight during the move fail',
    )
    t.same(figures.answers['/latest/meta-data/instance-id'], ['srv-abcde'])
    t.match(await store.list(), [{ id: 'srv-abcde', hypervisors: ['hv2'], revision: 3 }])
    t.same(
      (await store.hypervisors()).map(({ name }) => name),
      ['hv2'],
    )
    t.same([...(await store.fleet.drained())], [])
  },
)
