/** The firewall under traffic: other guests see no failure while instances are added and removed, or a guest floods. */
import t from 'tap'
import { without } from '../support/packages.ts'
import { until } from '../support/programs/daemon.ts'
import { curl, RAW_TCP, startFirewallHost } from '../support/netns/firewall-host.ts'
import { must } from '../support/programs/processes.ts'
import { startLoad, summary } from '../support/load/load.ts'
import { SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'

const skip = withoutNamespaces()
const ROUNDS = 6
const SYNS = 20_000

t.test('instances that are added and removed cause no failed request of another guest', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
  await host.startFirewall()
  await host.putAndWait(alpha)
  const loads = [
    await startLoad(alpha, { clients: 2, keepAlive: false }),
    await startLoad(alpha, { clients: 2, keepAlive: true }),
  ]
  for (let i = 0; i < ROUNDS; i++) {
    await Promise.all(loads.map((load) => load.more(50)))
    const revision = await host.putAndWait(bravo)
    t.equal(await curl(bravo), 200, 'its first request is served')
    await host.store.remove('srv-bravo', revision)
    await until(async () => (await curl(bravo)) === 'refused', 'bravo to be kept out')
  }
  for (const load of loads) {
    const figures = await load.stop()
    t.comment(summary(figures))
    t.same([figures.failed, figures.answers['/latest/meta-data/instance-id']], [[], ['srv-alpha']])
  }
  t.ok((await host.counted('unknown_peers')) >= ROUNDS, "the kernel's counters survive changes of the rules")
})

t.test(
  'F1: a guest that opens connections beyond its rate gets resets; another guest sees no failure',
  { skip: skip || without('python3') },
  async (t) => {
    const host = await startFirewallHost(t)
    const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
    await host.startFirewall()
    await host.putAndWait(alpha)
    await host.putAndWait(bravo)
    const load = await startLoad(bravo, { clients: 2, keepAlive: false })
    await load.more(20)
    // by raw segments: on a busy machine, sockets open fewer than the rate allows
    const flood = ['python3', RAW_TCP, 'flood', alpha.address, SERVICE, String(SYNS)]
    const seen = JSON.parse(String(await must([...alpha.within, ...flood]))) as Record<'SA' | 'RA', number>
    t.comment(JSON.stringify(seen))
    t.same(Object.keys(seen).sort(), ['RA', 'SA'], 'each is opened or reset')
    t.equal(seen.SA + seen.RA, SYNS, 'none gets no response at all')
    t.ok(seen.SA >= 6_000, 'a burst of 6,000 connections is accepted')
    t.ok((await host.counted('too_many')) >= seen.RA)
    await load.more(20)
    const figures = await load.stop()
    t.comment(`the other: ${summary(figures)}`)
    t.same(figures.failed, [])
  },
)
