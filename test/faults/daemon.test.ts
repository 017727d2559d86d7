/**
 * G1 and G3: the daemon is stopped, killed and replaced, with its sockets in safe keeping; guests read their trees all the while.
 */
import { join } from 'node:path'
import t from 'tap'
import { buildInto } from '../support/build.ts'
import { startFaultHost } from '../support/faults.ts'
import { underFault } from '../support/faults-seen.ts'
import { withoutNamespaces } from '../support/namespaces.ts'

t.test('no guest notices what happens to the daemon', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis } = host

  await t.test('stopped, and started again without Redis', (t) => underFault(t, host, 'daemon stopped (SIGTERM), started without Redis', async (operator) => {
    await redis.client.save()
    await redis.kill()
    const published = host.publish()
    await host.endDaemon('SIGTERM')
    t.equal(host.daemon().process.exitCode, 0)
    await host.startDaemon()
    await operator.sees('imds_view_instances', host.guests.length)
    await operator.sees('imds_ready', 0)
    await operator.reads('store not usable')
    await redis.start()
    await published
  }))

  await t.test('killed, and started again: no more fails than was under way', (t) => underFault(t, host, 'daemon killed (SIGKILL), started', async (operator) => {
    await host.endDaemon('SIGKILL')
    const published = host.publish()
    await host.startDaemon()
    await published
    await operator.reads('listening')
    await operator.sees('imds_ready', 1)
  }, host.guests.length))

  await t.test('upgraded: another build in its place', async (t) => {
    const dist = join(t.testdir(), 'dist') // below the repository, where it finds node_modules
    buildInto(dist)
    await underFault(t, host, 'daemon upgraded', async (operator) => {
      await host.endDaemon('SIGTERM')
      const published = host.publish()
      await host.startDaemon(join(dist, 'main.js'))
      await published
      await operator.reads('listening')
      await operator.sees('imds_ready', 1)
    })
  })
})
