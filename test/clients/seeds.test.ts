/**
 * The real cloud-init boots guests by its NoCloud and OpenStack data sources (contract H5 to H7), which it chooses by
 * SMBIOS strings as in a virtual machine, and renders the networks that they describe.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import t, { type Test } from 'tap'
import { aFullInstance, anInstance } from '../support/fixtures/instance.ts'
import type { Machine } from '../support/netns/guest-machine.ts'
import { startVm, type Dmi } from '../support/netns/guest-vm.ts'
import { startHost } from '../support/netns/host.ts'
import { withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { newerCloudInit } from '../support/programs/newer-cloud-init.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'

const ADA = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example'
const LAPTOP = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5 ada@laptop'
const KEYS = [{ user: 'usr-xl7gd', key: ADA, moreKeys: [LAPTOP] }]
const SCRIPT = '#!/bin/sh\necho "grüß dich"\n'
const VENDOR = '#!/bin/sh\necho vendor\n'
/** The data source that older versions call NoCloudNet. */
const NOCLOUD: Dmi = { product_serial: 'ds=nocloud-net;s=http://169.254.169.254/nocloud/' }
/** A record with all that a guest reads, and one interface. */
const aSeed = (id: string, first: object, change: Record<string, unknown> = {}) =>
  aFullInstance({
    id,
    fqdn: `${id}.gb1.example.com`,
    interfaces: [first],
    vendorData: VENDOR,
    publicKeys: KEYS,
    ...change,
  })

/** Where cloud-init writes early entropy, instead of /dev/urandom. */
const RANDOM_SEED = '/run/random-seed'
/** cloud-init's renderers for Linux, each with a distribution that uses it. */
const RENDERERS = [
  ['eni', 'debian'],
  ['networkd', 'debian'],
  ['netplan', 'ubuntu'],
  ['sysconfig', 'rhel'],
  ['network-manager', 'fedora'],
] as const
const OPENSTACK: Dmi = { product_name: 'OpenStack Nova' }

t.test('cloud-init', { skip: withoutNamespaces() || without('cloud-init') }, async (t) => {
  const host = await startHost(t)
  const directory = mkdtempSync('/var/tmp/imds-cloud-init-') // the guest has a /tmp of its own
  t.teardown(() => rmSync(directory, { recursive: true }))
  const newer = newerCloudInit(directory)

  t.test('H5, H7: boots by NoCloud', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(aSeed('srv-seed0', first), Buffer.from(SCRIPT))
    const machine = await boot(t, guest, 'NoCloud', NOCLOUD)
    await hasAll(t, machine, 'srv-seed0')
    t.strictSame(await host.refusals(), [])
  })

  t.test('H5: boots by NoCloud without user-data, vendor data and keys', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-seed1', interfaces: [first], publicKeys: [] }), 'none')
    const machine = await boot(t, guest, 'NoCloud', NOCLOUD)
    t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), 'srv-seed1\n')
    t.equal(await text(machine, '/var/lib/cloud/instance/user-data.txt'), '')
    t.strictSame(await host.refusals(), [])
  })

  t.test('H6, H7: boots by OpenStack', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(aSeed('srv-seed2', first, { options: { openstack: 'enabled' } }), Buffer.from(SCRIPT))
    const machine = await boot(t, guest, 'OpenStack', OPENSTACK)
    await hasAll(t, machine, 'srv-seed2')
    const { body } = await guest.ask({ path: '/openstack/latest/meta_data.json' })
    const { random_seed: seed } = JSON.parse(body.toString()) as { random_seed: string }
    t.ok((await machine.read(RANDOM_SEED)).equals(Buffer.from(seed, 'base64')), 'it mixes in random_seed')
    t.strictSame(await host.refusals(), [])
  })

  t.test('H5, H6: each renderer configures the interface with the MAC address, under its own name', async (t) => {
    const { guest, first } = await host.addGuest('ens3')
    const nic = {
      ...first,
      ipv4Gateway: first.ipv4Addresses[0]!.replace(/\d+\/29$/, '1'),
      ipv6Addresses: ['fd00::2/64'],
      ipv6Gateway: 'fe80::1',
      nameservers: ['10.0.0.53'],
    }
    const values = [first.ipv4Addresses[0]!.replace('/29', ''), nic.ipv4Gateway, 'fd00::2/64', 'fe80::1', '10.0.0.53']
    const options = { openstack: 'enabled' }
    const machine = await startVm(t, guest, NOCLOUD)
    for (const [revision, one, expected] of [
      [1, nic, values],
      [2, { ...first, ipv6Prefixes: ['fd00::/64'] }, []],
    ] as const) {
      await host.put(anInstance({ id: 'srv-seed3', revision, interfaces: [one], options }), 'none')
      for (const [path, kind] of [
        ['nocloud/network-config', 'yaml'],
        ['openstack/latest/network_data.json', 'network_data.json'],
      ] as const) {
        const { body } = await guest.ask({ path: `/${path}` })
        await machine.write('/run/network', body.toString())
        for (const command of 'missing' in newer ? [['cloud-init']] : [['cloud-init'], newer.command])
          for (const [output, distro] of RENDERERS) {
            const { status, stderr } = await machine.run([
              ...[...command, 'devel', 'net-convert', '-p', '/run/network', '-k', kind, '-d', '/run/out'],
              ...['-D', distro, '-O', output, '-m', `ens3,${first.macAddress}`],
            ])
            const what = `${command.at(-1)!}: ${kind} to ${output}`
            t.equal(status, 0, `${what}: ${stderr}`)
            const rendered = await machine.run(['sh', '-c', 'grep -rh "" /run/out; rm -r /run/out'])
            const text = rendered.stdout.toString()
            // its renderer for NetworkManager takes no resolvers from OpenStack's format
            const without = output === 'network-manager' && kind === 'network_data.json' ? '10.0.0.53' : undefined
            for (const value of expected) t.ok(value === without || text.includes(value), `${what} has ${value}`)
            t.match(text, output === 'netplan' ? `macaddress: ${first.macAddress}` : 'ens3', what)
          }
      }
    }
  })

  t.test('H5: a version that reads the network configuration over HTTP renders it at the boot', async (t) => {
    if ('missing' in newer) {
      t.pass('skipped', { skip: newer.missing })
      return
    }
    const { guest, first } = await host.addGuest('ens3')
    const nic = { ...first, nameservers: ['10.0.0.53'] }
    await host.put(aSeed('srv-seed4', nic), Buffer.from(SCRIPT))
    const machine = await boot(
      t,
      guest,
      'NoCloud',
      { product_serial: executed('docs/clients.md', 'nocloud').trim() },
      newer.command,
    )
    await hasAll(t, machine, 'srv-seed4')
    const rendered = await renderedNetwork(machine)
    for (const value of [first.ipv4Addresses[0]!, first.macAddress, '10.0.0.53', 'ens3'])
      t.ok(rendered.includes(value), `the rendered network has ${value}`)
    t.notMatch(rendered, 'eth0')
    t.strictSame(await host.refusals(), [])
  })

  t.test('H5: where DHCP is enough, that version reads a configuration of DHCP, and repeats nothing', async (t) => {
    if ('missing' in newer) {
      t.pass('skipped', { skip: newer.missing })
      return
    }
    const before = await host.refusals()
    const { guest, first } = await host.addGuest('ens3')
    await host.put(aSeed('srv-seed6', first), Buffer.from(SCRIPT))
    const machine = await boot(t, guest, 'NoCloud', NOCLOUD, newer.command)
    await hasAll(t, machine, 'srv-seed6')
    const rendered = await renderedNetwork(machine)
    t.match(rendered, /dhcp/i)
    t.ok(rendered.includes(first.macAddress) && !rendered.includes('eth0'))
    t.strictSame(await host.refusals(before), []) // it asks ten times, a second apart, for a file that is missing
  })
})

/**
 * Boots a guest whose firmware has these strings, and that may use no other data source. Only the network stage is run:
 * in the local stage these sources would wait for a DHCP server. `expected`: the only warnings that there may be.
 */
async function boot(
  t: Test,
  guest: Guest,
  source: string,
  dmi: Dmi,
  command: readonly string[] = ['cloud-init'],
  expected = /^$/,
): Promise<Machine> {
  const machine = await startVm(t, guest, dmi)
  await machine.write(
    '/etc/cloud/cloud.cfg.d/99_test.cfg', // without modules that would try to grow disks
    `datasource_list: [${source}]
disable_network_activation: true
cloud_init_modules: [seed_random, set_hostname, users-groups, ssh]
random_seed: { file: ${RANDOM_SEED} }
ssh_genkeytypes: [ed25519]
`,
  )
  const { status, stderr } = await machine.run([...command, 'init'])
  if (!t.equal(status, 0, 'cloud-init init')) t.comment(stderr)
  t.strictSame(
    stderr.split('\n').filter((line) => /\[(WARNING|ERROR|CRITICAL)\]|Traceback/.test(line) && !expected.test(line)),
    [],
  )
  return machine
}

/** The id, the host name, the key, the user-data and the vendor data are those of the record. */
async function hasAll(t: Test, machine: Machine, id: string): Promise<void> {
  t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), `${id}\n`)
  t.equal((await machine.run(['hostname'])).stdout.toString(), `${id}\n`)
  const keys = await text(machine, '/home/debian/.ssh/authorized_keys')
  for (const key of [ADA, LAPTOP]) t.match(keys, `${key}\n`)
  t.equal(await text(machine, '/var/lib/cloud/instance/user-data.txt'), SCRIPT)
  t.equal(await text(machine, '/var/lib/cloud/instance/vendor-data.txt'), VENDOR)
}

/** The network configuration that cloud-init has written, by any renderer. */
async function renderedNetwork(machine: Machine): Promise<string> {
  const anyRenderer = 'cat /etc/network/interfaces.d/* /etc/netplan/* /etc/systemd/network/*'
  return (await machine.run(['sh', '-c', anyRenderer])).stdout.toString()
}

async function text(machine: Machine, path: string): Promise<string> {
  return (await machine.read(path)).toString()
}
