/**
 * Redis is down or unreachable while guests read their trees, and a change that is published meanwhile arrives
 * (contract G1).
 */
import t from 'tap'
import { startFaultHost } from '../support/netns/fault-host.ts'
import { STORE_LOST, underFault } from '../support/load/during-fault.ts'
import { must } from '../support/programs/processes.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

t.test('G1: no guest notices that Redis is unreachable', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis, hypervisor } = host

  await t.test('killed and restarted', (t) =>
    underFault(t, host, 'Redis killed, and started again', async (operator) => {
      await redis.client.save()
      await redis.kill()
      await operator.seesMetric(STORE_LOST, 1)
      await operator.seesLogLine('store-lost')
      const published = host.publish()
      await redis.start()
      await published
    }),
  )

  await t.test('paused by SIGSTOP and resumed', (t) =>
    underFault(t, host, 'Redis paused (SIGSTOP)', async (operator) => {
      redis.signal('SIGSTOP')
      await operator.seesMetric(STORE_LOST, 1)
      await operator.seesLogLine('store-lost')
      const published = host.publish()
      redis.signal('SIGCONT')
      await published
    }),
  )

  await t.test('cut off: packets are dropped silently', (t) =>
    underFault(t, host, 'the network to Redis cut (packets dropped)', async (operator) => {
      const nft = (rules: string) => must([...hypervisor.within, 'nft', '-f', '-'], { input: rules })
      await nft(`table inet cut {
      chain out { type filter hook output priority 0; ip daddr ${redis.address} drop; }
      chain in { type filter hook input priority 0; ip saddr ${redis.address} drop; }
    }`)
      await host.publish()
      await operator.seesMetric(STORE_LOST, 1)
      await operator.seesLogLine('store-lost')
      await nft('delete table inet cut')
    }),
  )
})
