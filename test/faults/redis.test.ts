/**
 * G1: Redis is unreachable, slow, full, empty or old while guests read their trees. No request fails, no guest gets the
 * data of another, the operator sees the fault, and the changes arrive after it. test/world has every order of these.
 */
import t, { type Test } from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad } from '../support/load/load.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { startFaultyRedis } from '../support/redis/namespaced-redis.ts'
import { openTestStore } from '../support/test-store.ts'

const GUESTS = 4
/** The least number of requests of each guest before the fault, and again after it. */
const MIN_REQUESTS = 50
const LOST = 'imds_condition{code="store-lost",severity="failure"}'
const [ID, USER_DATA] = ['/latest/meta-data/instance-id', '/latest/user-data']
/** A script that blocks Redis for 400 ms, as KEYS does in a large store. */
const BUSY = `local function now() local t = redis.call('TIME'); return t[1] * 1000 + t[2] / 1000 end
  local start = now(); while now() - start < 400 do end`

/** Four guests in namespaces, the daemon in that of the hypervisor, and Redis in one of its own. */
async function aHost(t: Test) {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const redis = await startFaultyRedis(hypervisor)
  t.teardown(() => redis.stop())
  const store = await openTestStore(t, { url: redis.publisherUrl, region: 'gb1' })
  const daemon = await startDaemon(
    t,
    {
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: 'hv1',
      IMDS_RESYNC_SECONDS: '1',
      IMDS_LISTEN: `${SERVICE}:80`,
    },
    hypervisor.within,
  )
  const links = Array.from({ length: GUESTS }, (_, n) => ({
    address: `10.88.${n}.2/29`,
    gateway: `10.88.${n}.1`,
    macAddress: `02:24:19:00:01:0${n}`,
  }))
  const guests = await Promise.all(links.map((link) => hypervisor.addGuest(link)))
  let revision = 0
  const userDataOf = (n: number) => `#cloud-config\n# srv-g${n} r${revision}\n`.padEnd(4096, '#')
  const put = (n: number) => {
    const { macAddress, address } = links[n]!
    const interfaces = [{ id: `int-g${n}`, macAddress, ipv4Addresses: [address] }]
    return store.put(anInstance({ id: `srv-g${n}`, revision, interfaces }), Buffer.from(userDataOf(n)))
  }
  const publish = async () => {
    revision += 1
    await Promise.all(guests.map((_guest, n) => put(n)))
  }
  const arrived = () =>
    Promise.all(
      guests.map((guest, n) =>
        until(
          async () => (await guest.ask({ path: USER_DATA })).body.toString() === userDataOf(n),
          `the change of srv-g${n}`,
          20_000,
        ),
      ),
    )
  const sees = (name: string, value: number) =>
    until(async () => (await daemon.metric(name)) === value, `${name} ${value}`, 20_000)
  await publish()
  await arrived()
  return { hypervisor, redis, daemon, guests, publish, arrived, sees }
}
type Host = Awaited<ReturnType<typeof aHost>>

/** Each fault: it begins, is seen by the operator, ends, and a change is published meanwhile. */
const FAULTS: Readonly<Record<string, (host: Host, t: Test) => Promise<void>>> = {
  'Redis is killed and started again': async ({ redis, sees, publish }) => {
    await redis.client.save()
    await redis.kill()
    await sees(LOST, 1)
    const published = publish()
    await redis.start()
    await published
  },
  'Redis is paused': async ({ redis, sees, publish }) => {
    redis.signal('SIGSTOP')
    await sees(LOST, 1)
    const published = publish()
    redis.signal('SIGCONT')
    await published
  },
  'packets to Redis are dropped': async ({ hypervisor, redis, sees, publish }) => {
    const nft = (rules: string) => must([...hypervisor.within, 'nft', '-f', '-'], { input: rules })
    await nft(`table inet cut {
      chain out { type filter hook output priority 0; ip daddr ${redis.address} drop; }
      chain in { type filter hook input priority 0; ip saddr ${redis.address} drop; }
    }`)
    await publish()
    await sees(LOST, 1)
    await nft('delete table inet cut')
  },
  'Redis is slow': async ({ redis, sees, publish, arrived }) => {
    const blocking = Promise.all(Array.from({ length: 10 }, () => redis.client.eval(BUSY, 0)))
    await publish()
    await arrived()
    await sees(LOST, 0)
    await blocking
  },
  'Redis is out of memory': async ({ redis, sees, publish }, t) => {
    await redis.client.config('SET', 'maxmemory-policy', 'noeviction', 'maxmemory', '1mb')
    await t.rejects(publish(), /OOM command not allowed/)
    await sees(LOST, 0)
    await redis.client.config('SET', 'maxmemory', '0')
    await publish()
  },
  'Redis is a read-only replica for a time': async ({ redis, sees, publish }) => {
    await redis.client.replicaof('127.0.0.1', 1)
    await sees(LOST, 1)
    const published = publish()
    await redis.client.replicaof('NO', 'ONE')
    await published
  },
  'the connection of notices is lost, and with it the notices': async ({ redis, publish }) => {
    await redis.client.call('CLIENT', 'KILL', 'TYPE', 'pubsub')
    await publish()
  },
  'Redis is flushed by mistake': async ({ redis, sees, publish }) => {
    await redis.client.flushall()
    await sees('imds_view_absent_instances', GUESTS)
    await publish()
  },
  'Redis is restored from an old backup': async ({ redis, sees, publish, arrived }) => {
    await redis.client.save()
    await publish()
    await arrived()
    await redis.kill()
    await redis.start()
    await sees('imds_condition{code="store-behind",severity="failure"}', 1)
    await publish()
  },
}

t.test('G1: no guest notices a fault of Redis', { skip: withoutNamespaces() }, async (t) => {
  const host = await aHost(t)
  for (const [fault, cause] of Object.entries(FAULTS))
    await t.test(fault, async (t) => {
      const loads = await Promise.all(host.guests.map((guest) => startLoad(guest, { clients: 1, keepAlive: false })))
      const more = () => Promise.all(loads.map((load) => load.more(MIN_REQUESTS)))
      await more()
      await cause(host, t)
      await host.arrived()
      await host.sees(LOST, 0)
      await host.sees('imds_view_absent_instances', 0)
      await more()
      for (const [n, load] of loads.entries()) {
        const { failed, answers } = await load.stop()
        t.same(failed, [])
        t.same(answers[ID], [`srv-g${n}`], 'only its own id')
        t.ok(answers[USER_DATA]!.every((body) => body.includes(`srv-g${n} `)))
      }
    })
  const isError = ({ level }: { readonly level: string }) => level === 'error' || level === 'fatal'
  t.same(host.daemon.log.filter(isError), [], 'no error in the log')
})
