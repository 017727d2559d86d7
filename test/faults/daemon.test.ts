/**
 * G1 and G3: the daemon is stopped, killed and replaced while its sockets are held and guests read their trees.
 */
import { join } from 'node:path'
import t from 'tap'
import { startFaultHost } from '../support/netns/fault-host.ts'
import { underFault } from '../support/load/during-fault.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { buildInto } from '../support/programs/imds.ts'

const TIMES = 3

t.test('no guest notices a fault of the daemon', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis } = host

  await t.test('G1: stopped and restarted without Redis', (t) => underFault(t, host, 'daemon stopped (SIGTERM), started without Redis', async (operator) => {
    await redis.client.save()
    await redis.kill()
    await host.endDaemon('SIGTERM')
    t.equal(host.daemon().process.exitCode, 0)
    await host.startDaemon()
    await operator.seesMetric('imds_view_instances', host.guests.length)
    await operator.seesMetric('imds_ready', 0)
    await operator.seesLogLine('the store cannot be used')
    const published = host.publish()
    await redis.start()
    await published
  }))

  /** A change is published during the fault, and has arrived at the end. */
  const replaced = async (signal: 'SIGTERM' | 'SIGKILL', main?: string) => {
    await host.endDaemon(signal)
    const published = host.publish()
    await host.startDaemon(main)
    await published
    await host.arrived()
  }

  await t.test('stopped and restarted while a record changes', (t) => underFault(t, host, `daemon stopped (SIGTERM) and started, ${String(TIMES)} times`, async (operator) => {
    for (let i = 0; i < TIMES; i++) await replaced('SIGTERM')
    await operator.seesLogLine('first resync completed: ready')
  }))

  await t.test('killed and restarted: only requests in flight fail', (t) => underFault(t, host, `daemon killed (SIGKILL) and started, ${String(TIMES)} times`, async (operator) => {
    for (let i = 0; i < TIMES; i++) await replaced('SIGKILL')
    await operator.seesLogLine('first resync completed: ready')
  }, TIMES * host.guests.length))

  await t.test('upgraded: replaced by another build', async (t) => {
    const dist = join(t.testdir(), 'dist') // below the repository, where it finds node_modules
    buildInto(dist)
    await underFault(t, host, 'daemon upgraded (another build in its place)', async (operator) => {
      await replaced('SIGTERM', join(dist, 'main.js'))
      await operator.seesLogLine('first resync completed: ready')
    })
  })
})
