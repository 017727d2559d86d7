/**
 * The daemon is stopped, killed and replaced while its socket stays open and guests read their trees (contract G1, G3).
 */
import { join } from 'node:path'
import t from 'tap'
import { startFaultHost } from '../support/netns/fault-host.ts'
import { underFault } from '../support/load/during-fault.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { buildInto } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

const TIMES = 3

t.test('no guest notices a fault of the daemon', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis } = host

  await t.test('G1: stopped and restarted without Redis', (t) =>
    underFault(t, host, 'daemon stopped (SIGTERM), started without Redis', async (operator) => {
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
    }),
  )

  /** Ends the daemon, publishes a change, starts the daemon again and waits until guests get the change. */
  const replaceDaemon = async (signal: 'SIGTERM' | 'SIGKILL', main?: string) => {
    await host.endDaemon(signal)
    const published = host.publish()
    await host.startDaemon(main)
    await published
    await host.arrived()
  }

  await t.test('stopped and restarted while a record changes', (t) =>
    underFault(t, host, `daemon stopped (SIGTERM) and started, ${TIMES} times`, async (operator) => {
      for (let i = 0; i < TIMES; i++) await replaceDaemon('SIGTERM')
      await operator.seesLogLine('first resync completed: ready')
    }),
  )

  await t.test('killed and restarted: only requests in flight fail', (t) =>
    underFault(
      t,
      host,
      `daemon killed (SIGKILL) and started, ${TIMES} times`,
      async (operator) => {
        for (let i = 0; i < TIMES; i++) await replaceDaemon('SIGKILL')
        await operator.seesLogLine('first resync completed: ready')
      },
      TIMES * host.guests.length,
    ),
  )

  await t.test('upgraded: replaced by another build', async (t) => {
    const dist = join(testDirectory(t), 'dist') // inside the repository, where the build finds node_modules
    buildInto(dist)
    await underFault(t, host, 'daemon upgraded (another build in its place)', async (operator) => {
      await replaceDaemon('SIGTERM', join(dist, 'main.js'))
      await operator.seesLogLine('first resync completed: ready')
    })
  })
})
