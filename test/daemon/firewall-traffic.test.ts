/**
 * The firewall under traffic: instances come and go and a guest floods, without a failure for others.
 */
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { meet, startFirewallHost } from '../support/netns/firewall-host.ts'
import { must } from '../support/programs/processes.ts'
import { startLoad, summary } from '../support/load/load.ts'
import { SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'

const skip = withoutNamespaces()
const ROUNDS = 6

t.test('instances that come and go under traffic cause no failure for others', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
  await host.startFirewall()
  await host.letIn(alpha)
  const loads = [await startLoad(alpha, { clients: 2, keepAlive: false }), await startLoad(alpha, { clients: 2, keepAlive: true })]
  for (let i = 0; i < ROUNDS; i++) {
    await Promise.all(loads.map((load) => load.more(50)))
    const revision = await host.letIn(bravo)
    t.equal(await meet(bravo), 200, 'answered at its first request')
    await host.store.remove('srv-bravo', revision)
    await until(async () => await meet(bravo) === 'refused', 'bravo to be kept out')
  }
  for (const load of loads) {
    const figures = await load.stop()
    t.comment(summary(figures))
    t.same([figures.failed, figures.answers['/latest/meta-data/instance-id']], [[], ['srv-alpha']])
  }
  t.ok(await host.counted('unknown_peers') >= ROUNDS, 'what the kernel counts is not lost with a change')
})

t.test('F1: a guest that keeps opening connections is reset beyond its rate; another loses nothing', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
  await host.startFirewall()
  await host.letIn(alpha)
  await host.letIn(bravo)
  const load = await startLoad(bravo, { clients: 2, keepAlive: false })
  await load.more(20)
  const code = `
    const { connect } = require('node:net')
    const seen = {}
    let left = 25000
    const next = () => {
      if (left-- <= 0) return
      const end = (what) => {
        seen[what] = (seen[what] ?? 0) + 1
        if (what !== 'opened' && seen[what] > 1000) left = 0
        socket.resetAndDestroy()
        next()
      }
      const socket = connect(80, '${SERVICE}', () => end('opened')).on('error', ({ code }) => end(code))
    }
    for (let i = 0; i < 100; i++) next()
    process.on('exit', () => console.log(JSON.stringify(seen)))`
  const seen = JSON.parse((await must([...alpha.within, process.execPath, '-e', code])).toString()) as Record<string, number>
  t.comment(JSON.stringify(seen))
  t.ok(seen['opened']! >= 6_000, 'a burst of 6,000 is let in')
  t.ok(seen['ECONNREFUSED']! > 0, 'what is beyond the rate is reset')
  t.same(Object.keys(seen).sort(), ['ECONNREFUSED', 'opened'], 'and nothing is left in silence')
  t.ok(await host.counted('too_many') >= seen['ECONNREFUSED']!)
  await load.more(20)
  const figures = await load.stop()
  t.comment(`the other: ${summary(figures)}`)
  t.same(figures.failed, [])
})
