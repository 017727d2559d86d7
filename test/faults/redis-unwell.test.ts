/**
 * Redis is slow, full or read-only while guests read their trees, and a change that is published meanwhile arrives
 * (contract G1).
 */
import t from 'tap'
import { startFaultHost } from '../support/netns/fault-host.ts'
import { STORE_LOST, underFault } from '../support/load/during-fault.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

/** A script that blocks Redis for 400 ms, as KEYS does in a large store. */
const BUSY = `local function now() local t = redis.call('TIME'); return t[1] * 1000 + t[2] / 1000 end
  local start = now(); while now() - start < 400 do end`

t.test('G1: no guest notices that Redis is impaired', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis } = host

  await t.test('slow: others block it for 400 ms at a time', (t) =>
    underFault(t, host, 'Redis slow: every command waits 400 ms', async (operator) => {
      const end = new AbortController()
      const others = (async () => {
        while (!end.signal.aborted) await redis.client.eval(BUSY, 0)
      })()
      for (let i = 0; i < 3; i++) {
        await host.publish()
        await host.arrived()
      }
      operator.notes('changes take longer')
      await operator.seesMetric(STORE_LOST, 0)
      end.abort()
      await others
    }),
  )

  await t.test('out of memory', (t) =>
    underFault(t, host, 'Redis out of memory (noeviction)', async (operator) => {
      await redis.client.config('SET', 'maxmemory-policy', 'noeviction', 'maxmemory', '1mb')
      const { text, userData } = host.next(0)
      await t.rejects(host.store.put(JSON.parse(text), userData), {
        message: /OOM command not allowed when used memory > 'maxmemory'/,
      })
      operator.notes('the publisher: "OOM command not allowed"')
      await operator.seesMetric(STORE_LOST, 0)
      await redis.client.config('SET', 'maxmemory', '0')
      await host.store.put(JSON.parse(text), userData)
    }),
  )

  await t.test('turned into a read-only replica, and back', (t) =>
    underFault(t, host, 'Redis made a read-only replica', async (operator) => {
      await redis.client.replicaof('127.0.0.1', 1)
      await operator.seesMetric(STORE_LOST, 1)
      await operator.seesLogLine('store-lost')
      const published = host.publish()
      await redis.client.replicaof('NO', 'ONE')
      await published
    }),
  )
})
