/**
 * Real guests report (contract H9): cloud-init by its phone_home module, and by the documented commands with a token.
 */
import t from 'tap'
import type { ReportsDocument } from '../../src/imdsd/operator/documents.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startMachine, type Machine } from '../support/netns/guest-machine.ts'
import { startHost } from '../support/netns/host.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'

t.test('H9', { skip: withoutNamespaces() || without('cloud-init') }, async (t) => {
  const host = await startHost(t)
  const reportsOf = async (id: string) => JSON.parse(await host.operator(`/instances/${id}/reports`)) as ReportsDocument

  const phoneHome = executed('docs/guests.md', 'phone home')
  const commands = executed('docs/guests.md', 'report by cloud-init with a token')
  for (const { id, config, httpTokens, seeded } of [
    { id: 'srv-home', config: phoneHome, httpTokens: 'optional', seeded: false },
    { id: 'srv-tokens', config: commands, httpTokens: 'required', seeded: true },
  ])
    t.test(`cloud-init reports all keys that it makes, with httpTokens: ${httpTokens}`, async (t) => {
      const { guest, first } = await host.addGuest()
      const userData = Buffer.from(config)
      await host.put(anInstance({ id, interfaces: [first], options: { reports: 'enabled', httpTokens } }), userData)
      const machine = await startMachine(guest)
      t.teardown(() => machine.stop())
      await machine.write(
        '/etc/cloud/cloud.cfg.d/99_test.cfg', // without modules that would try to grow disks
        `datasource_list: [${seeded ? 'NoCloud' : 'Ec2'}]
datasource: {Ec2: {strict_id: false, max_wait: 20, timeout: 5}}
disable_network_activation: true
cloud_init_modules: [ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user, phone-home]
`,
      )
      await machine.run(['sh', '-c', 'rm -f /etc/ssh/ssh_host_*; mkdir -p /var/lib/cloud/seed/nocloud'])
      if (seeded) {
        await machine.write('/var/lib/cloud/seed/nocloud/meta-data', `instance-id: ${id}\n`)
        await machine.write('/var/lib/cloud/seed/nocloud/user-data', userData.toString())
      }
      for (const command of [
        ['init', '--local'],
        ['init'],
        ['modules', '--mode=config'],
        ['modules', '--mode=final'],
      ]) {
        const { status, stderr } = await machine.run(['cloud-init', ...command])
        if (!t.equal(status, 0, command.join(' '))) t.comment(stderr)
      }
      const keys = await hostKeys(machine)
      t.equal(keys.length, 4, 'the types that cloud-init makes by default')
      const address = first.ipv4Addresses[0]!.replace(/\/.*/, '')
      const { claimedByGuest } = await reportsOf(id)
      const boot = id === 'srv-home' ? { name: 'instance_id', text: id } : { name: 'boot', text: 'done' }
      t.match(
        claimedByGuest.reports.find(({ name }) => name === boot.name),
        boot,
      )
      t.same(new Set(claimedByGuest.knownHosts), new Set(keys.map((key) => `${address} ${key}`)))
      t.strictSame(await host.refusals(), [])
    })
})

/** The public SSH host keys of a machine, as `TYPE BASE64`. */
async function hostKeys(machine: Machine): Promise<string[]> {
  const files = (await machine.run(['sh', '-c', 'cat /etc/ssh/ssh_host_*_key.pub'])).stdout.toString().trim()
  return files.split('\n').map((line) => line.split(' ').slice(0, 2).join(' '))
}
