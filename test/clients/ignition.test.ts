/**
 * Ignition, which configures CoreOS and Flatcar. On this cloud it requests a single path, and a 404 means "no
 * configuration" (contract A8, docs/clients.md#ignition).
 */
import t, { type Test } from 'tap'
import { until } from '../support/programs/daemon.ts'
import { startHost } from '../support/netns/host.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startMachine } from '../support/netns/guest-machine.ts'
import { withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { without } from '../support/packages.ts'

const IGNITION = '/usr/lib/dracut/modules.d/30ignition/ignition'
const MOTD = { path: '/etc/motd', contents: { source: 'data:,hello' } }
const CONFIGURATION = Buffer.from(JSON.stringify({ ignition: { version: '3.3.0' }, storage: { files: [MOTD] } }))

t.test('Ignition', { skip: withoutNamespaces() || without('ignition') }, async (t) => {
  const host = await startHost(t)

  t.test('reads its configuration from user-data', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-files', interfaces: [first] }), CONFIGURATION)
    t.match(await fetchConfiguration(t, guest), { storage: { files: [MOTD] } })
  })

  t.test('continues without a configuration if there is no user-data', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-plain', interfaces: [first] }), 'none')
    t.strictSame((await fetchConfiguration(t, guest)).storage, {})
  })

  t.test('G2: waits for a record that is published while it boots', async (t) => {
    const { guest, first } = await host.addGuest()
    const before = await host.refusals()
    const fetching = fetchConfiguration(t, guest)
    await until(
      async () => (await host.refusals(before)).some((line) => line.includes('reason="unknown-peer"')),
      'a refused request of Ignition',
    )
    await host.put(anInstance({ id: 'srv-later', interfaces: [first] }), CONFIGURATION)
    t.match(await fetching, { storage: { files: [MOTD] } })
  })
})

/** Runs Ignition's first stage. Returns the configuration that it saves for the next stages. */
async function fetchConfiguration(t: Test, guest: Guest): Promise<{ storage: unknown }> {
  const machine = await startMachine(guest)
  t.teardown(() => machine.stop())
  const { status, stdout } = await machine.run([IGNITION, '--platform=brightbox', '--stage=fetch', '--log-to-stdout'])
  if (!t.equal(status, 0, 'ignition --stage=fetch')) t.comment(stdout.toString())
  return JSON.parse((await machine.read('/run/ignition.json')).toString()) as { storage: unknown }
}
