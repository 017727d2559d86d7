/**
 * Real guests report (contract H9): cloud-init by its phone_home module, and the documented script for SSH host keys.
 */
import t from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { startMachine } from '../support/netns/guest-machine.ts'
import { startHost } from '../support/netns/host.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { executed } from '../tools/documents.ts'

t.test('H9', { skip: withoutNamespaces() }, async (t) => {
  const host = await startHost(t)
  const reportsOf = async (id: string) => JSON.parse(await host.operator(`/instances/${id}/reports`)) as object

  t.test('cloud-init phones home with the documented user-data', async (t) => {
    const { guest, first } = await host.addGuest()
    const userData = Buffer.from(executed('docs/guests.md', 'phone home'))
    await host.put(anInstance({ id: 'srv-home', interfaces: [first], options: { reports: 'enabled' } }), userData)
    const machine = await startMachine(guest)
    t.teardown(() => machine.stop())
    await machine.write(
      '/etc/cloud/cloud.cfg.d/99_test.cfg', // without modules that would try to grow disks
      `datasource_list: [Ec2]
datasource: {Ec2: {strict_id: false, max_wait: 20, timeout: 5}}
disable_network_activation: true
cloud_init_modules: [ssh]
cloud_final_modules: [phone-home]
ssh_genkeytypes: [ed25519]
`,
    )
    for (const command of [['init', '--local'], ['init'], ['modules', '--mode=final']]) {
      const { status, stderr } = await machine.run(['cloud-init', ...command])
      if (!t.equal(status, 0, command.join(' '))) t.comment(stderr)
    }
    const [type, key] = (await machine.read('/etc/ssh/ssh_host_ed25519_key.pub')).toString().split(' ')
    t.match(await reportsOf('srv-home'), {
      claimedByGuest: {
        boot: { phase: 'done' },
        sshHostKeys: { knownHosts: [`${first.ipv4Addresses[0]!.replace(/\/.*/, '')} ${type!} ${key!}`] },
      },
    })
    t.strictSame(await host.refusals(), [])
  })

  t.test('the documented script reports the SSH host keys, where tokens are required', async (t) => {
    const { guest, first } = await host.addGuest()
    const options = { reports: 'enabled', httpTokens: 'required' }
    await host.put(anInstance({ id: 'srv-keys', interfaces: [first], options }), 'none')
    const machine = await startMachine(guest)
    t.teardown(() => machine.stop())
    await machine.run(['sh', '-c', 'rm -f /etc/ssh/ssh_host_*; ssh-keygen -A'])
    const { status, stderr } = await machine.run(['sh', '-ec', executed('docs/guests.md', 'report host keys')])
    t.equal(status, 0, stderr)
    const files = (await machine.run(['sh', '-c', 'cat /etc/ssh/ssh_host_*_key.pub'])).stdout.toString().trim()
    const keys = files.split('\n').map((line) => line.split(' ').slice(0, 2).join(' '))
    t.ok(keys.length > 1)
    const address = first.ipv4Addresses[0]!.replace(/\/.*/, '')
    t.match(await reportsOf('srv-keys'), {
      claimedByGuest: { sshHostKeys: { knownHosts: keys.map((key) => `${address} ${key}`) } },
    })
  })
})
