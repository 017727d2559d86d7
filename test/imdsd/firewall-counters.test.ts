/** The firewall's counters as metrics of the daemon. */
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { curl, startFirewallHost } from '../support/netns/firewall-host.ts'
import { must } from '../support/programs/processes.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

const skip = withoutNamespaces()
const FORGED = '10.9.9.9'

t.test('packets are counted by result, and no count goes back when the rules are replaced', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  const first = await host.startFirewall()
  await host.putAndWait(alpha)
  await must([...alpha.within, 'ip', 'address', 'add', `${FORGED}/32`, 'dev', 'lo'])

  const seen: Record<string, number[]> = { admitted: [], 'unknown-peers': [] }
  const look = async () => {
    const text = await host.operator('/metrics')
    for (const [result, counts] of Object.entries(seen)) {
      const [, count] = new RegExp(`^imds_firewall_packets_total\\{result="${result}"\\} (\\d+)$`, 'm').exec(text) ?? []
      if (count !== undefined) counts.push(Number(count))
    }
  }
  /** Sends a packet of each kind, and waits until the metrics have what the kernel has counted then. */
  const countBoth = async (what: string) => {
    t.equal(await curl(alpha), 200)
    t.not(await curl(alpha, ['--interface', FORGED]), 200, 'a forged source address gets no response')
    const [admitted, unknown] = [await host.counted('admitted'), await host.counted('unknown_peers')]
    await until(async () => {
      await look()
      return (seen['admitted']!.at(-1) ?? 0) >= admitted && (seen['unknown-peers']!.at(-1) ?? 0) >= unknown
    }, what)
    return { admitted, unknown }
  }

  const before = await countBoth('the first packets')
  t.ok(before.admitted >= 4, 'the packets of a connection that is admitted')
  t.ok(before.unknown >= 1, 'the packet with the forged address')

  await first.stop()
  const second = await host.startFirewall()
  await until(() => second.output().includes('the rules are applied'), 'the new agent to replace the rules')
  const replaced = await countBoth('packets after a restart of the agent')
  t.ok(replaced.admitted > before.admitted && replaced.unknown > before.unknown, 'the kernel counts on')

  await host.nft('flush', 'ruleset')
  await until(() => second.output().includes('they are restored'), 'the agent to restore the rules')
  const restored = await countBoth('packets after another program has deleted the rules')
  t.ok(restored.admitted >= replaced.admitted && restored.unknown >= replaced.unknown, 'the kernel counts on')

  for (const [result, counts] of Object.entries(seen))
    t.same(
      counts,
      [...counts].sort((a, b) => a - b),
      `${result} never goes back`,
    )
})
