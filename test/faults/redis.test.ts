/**
 * G1: Redis goes away, hangs, or refuses to be written; guests read their trees all the while, and a change that is made meanwhile
 * arrives.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { startFaultHost } from '../support/faults.ts'
import { underFault } from '../support/faults-seen.ts'
import { must } from '../support/held.ts'
import { withoutNamespaces } from '../support/namespaces.ts'

/** A script that takes all of Redis' time for so long, as somebody's KEYS on a big store does. */
const BUSY = `local function now() local t = redis.call('TIME'); return t[1] * 1000 + t[2] / 1000 end
  local start = now(); while now() - start < 400 do end`

t.test('no guest notices what happens to Redis', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis, hypervisor } = host

  await t.test('killed, and started again', (t) => underFault(t, host, 'Redis killed, and started again', async (operator) => {
    await redis.client.save()
    await redis.kill()
    const published = host.publish()
    await operator.sees('imds_store_connected', 0)
    await operator.reads('store lost')
    await redis.start()
    await published
  }))

  await t.test('stopped in its tracks by SIGSTOP, and let go on', (t) => underFault(t, host, 'Redis paused (SIGSTOP)', async (operator) => {
    redis.signal('SIGSTOP')
    await operator.sees('imds_store_connected', 0)
    await operator.reads('store lost')
    const published = host.publish()
    redis.signal('SIGCONT')
    await published
  }))

  await t.test('slow: others take 400 ms of it at a time', (t) => underFault(t, host, 'Redis slow: every command waits 400 ms', async (operator) => {
    let isSlow = true
    const others = (async () => { while (isSlow) await redis.client.eval(BUSY, 0) })()
    await sleep(1000)
    await host.publish()
    await host.arrived()
    await operator.sees('imds_store_connected', 1)
    isSlow = false
    await others
  }))

  await t.test('out of memory', (t) => underFault(t, host, 'Redis out of memory (noeviction)', async (operator) => {
    await redis.client.config('SET', 'maxmemory-policy', 'noeviction', 'maxmemory', '1mb')
    const { text, userData } = host.next(0)
    await t.rejects(host.store.put(JSON.parse(text), userData), { message: /OOM command not allowed when used memory > 'maxmemory'/ })
    operator.notes('the publisher: "OOM command not allowed"')
    await operator.sees('imds_store_connected', 1)
    await redis.client.config('SET', 'maxmemory', '0')
    await host.store.put(JSON.parse(text), userData)
  }))

  await t.test('turned into a read-only replica, and back', (t) => underFault(t, host, 'Redis made a read-only replica', async (operator) => {
    await redis.client.replicaof('127.0.0.1', 1)
    const published = host.publish()
    await operator.sees('imds_store_connected', 0)
    await operator.reads('store lost')
    await redis.client.replicaof('NO', 'ONE')
    await published
  }))

  await t.test('cut off: packets vanish without a word', (t) => underFault(t, host, 'the network to Redis cut (packets dropped)', async (operator) => {
    const nft = (rules: string) => must([...hypervisor.within, 'nft', '-f', '-'], { input: rules })
    await nft(`table inet cut {
      chain out { type filter hook output priority 0; ip daddr ${redis.address} drop; }
      chain in { type filter hook input priority 0; ip saddr ${redis.address} drop; }
    }`)
    await host.publish()
    await operator.sees('imds_store_connected', 0)
    await operator.reads('store lost')
    await nft('delete table inet cut')
  }))
})
