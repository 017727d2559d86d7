/**
 * The real cloud-init boots guests: its local and its network stage, as the packaged units run them, with the modules
 * that use metadata. The tests check the files that it writes.
 */
import { gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { DEFAULT_USER_DATA_BYTES } from '../../src/store/open.ts'
import { until } from '../support/programs/daemon.ts'
import { startHost } from '../support/netns/host.ts'
import { aFullInstance, anInstance } from '../support/fixtures/instance.ts'
import { startMachine, type Machine } from '../support/netns/guest-machine.ts'
import { withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { must } from '../support/programs/processes.ts'
import { without } from '../support/packages.ts'

/**
 * Without DMI data cloud-init does not recognise the platform, and sends the same requests as in a guest of this cloud
 * (docs/clients.md#cloud-init). Modules that use no metadata are disabled, because some would try to grow disks.
 */
const CONFIGURATION = `
datasource_list: [Ec2]
datasource: {Ec2: {strict_id: false, max_wait: 20, timeout: 5}}
disable_network_activation: true
cloud_init_modules: [set_hostname, users-groups, ssh]
ssh_genkeytypes: [ed25519]
`

const ADA = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example'
const BOB = 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob smith'
const ADAS_OTHERS = [
  'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5 ada@laptop',
  'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOz3kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@phone',
]
const SCRIPT = '#!/bin/sh\necho "grüß dich"\n'
const EVERY_BYTE = Buffer.from(Array.from({ length: DEFAULT_USER_DATA_BYTES }, (_, i) => ((i >> 8) + i) & 0xff))

t.test('cloud-init', { skip: withoutNamespaces() || without('cloud-init') }, async (t) => {
  const host = await startHost(t)

  t.test('applies everything in the record, from the newest version that it knows', async (t) => {
    const { guest, first } = await host.addGuest()
    const cloudIps = [
      { id: 'cip-aaaaa', publicIpv4: '198.51.100.7', fqdn: 'cip-198-51-100-7.gb1.example.com' },
      { id: 'cip-bbbbb', publicIpv4: '198.51.100.8', fqdn: 'cip-198-51-100-8.gb1.example.com' },
    ]
    const other = {
      id: 'int-zz9zz',
      macAddress: '02:24:19:00:00:0a',
      ipv4Addresses: ['10.1.0.2/24'],
      ipv6Addresses: ['2a02:1348:178::2/64'],
      dhcpv6: true,
    }
    await host.put(
      aFullInstance({
        id: 'srv-full0',
        fqdn: 'srv-full0.gb1.example.com',
        interfaces: [{ ...first, ipv4Addresses: [...first.ipv4Addresses, '10.88.1.6/29'], cloudIps }, other],
        publicKeys: [
          { user: 'usr-adaaa', key: ADA, moreKeys: ADAS_OTHERS },
          { user: 'usr-bobbb', key: BOB },
        ],
        tags: { Name: 'web-1', 'a.b': 'é', '5=x': 'a name that breaks cloud-init', empty: '' },
        blockDevices: { ami: '/dev/sda1', root: '/dev/sda1', ebs1: 'sdb', ephemeral0: 'sdc' },
      }),
      Buffer.from(SCRIPT),
    )

    const { machine, log, metadata } = await boot(t, guest)
    t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), 'srv-full0\n')
    t.equal((await machine.run(['hostname'])).stdout.toString(), 'srv-full0\n')
    t.match(JSON.parse(await text(machine, '/var/lib/cloud/data/set-hostname')), {
      hostname: 'srv-full0',
      fqdn: 'srv-full0.gb1.example.com',
    })
    t.strictSame(await authorizedKeys(machine), [ADA, ...ADAS_OTHERS, BOB], 'exactly the keys of both users')
    t.equal(await text(machine, '/var/lib/cloud/instance/user-data.txt'), SCRIPT)

    t.match(log, 'Found preferred metadata version 2021-03-23')
    t.strictSame(metadata['tags'], { instance: { Name: 'web-1', 'a.b': 'é', empty: '' } })
    t.strictSame(metadata['block-device-mapping'], {
      ami: '/dev/sda1',
      root: '/dev/sda1',
      ebs1: 'sdb',
      ephemeral0: 'sdc',
    })
    t.match(metadata, {
      'public-ipv4': '198.51.100.7',
      placement: { 'availability-zone': 'gb1-a' },
      'instance-type': '2gb.ssd',
    })
    t.match(metadata['network'], {
      interfaces: {
        macs: {
          [first.macAddress]: {
            'device-number': '0',
            'local-ipv4s': ['10.88.1.2', '10.88.1.6'],
            'public-ipv4s': ['198.51.100.7', '198.51.100.8'],
          },
          [other.macAddress]: { 'device-number': '1', ipv6s: '2a02:1348:178::2' },
        },
      },
    })
    t.match(
      log,
      `Applying network configuration from ds bringup=False: {'version': 2, 'ethernets': {'eth0': {'dhcp4': True, 'dhcp6': False, ` +
        `'match': {'macaddress': '${first.macAddress}'}, 'set-name': 'eth0', 'addresses': ['10.88.1.6/29']}}}`,
    )
    t.strictSame(warnings(log), [])
    t.strictSame(await host.refusals(), [], 'every request got a 200')
  })

  t.test('C4, C7: boots with its keys and 16 KiB of bytes, although its second interface has only IPv6', async (t) => {
    const { guest, first } = await host.addGuest()
    const second = {
      id: 'int-bbbb9',
      macAddress: '02:24:19:00:01:99',
      ipv6Addresses: ['2a02:1348:178::9/64', '2a02:1348:178::a/64'],
      dhcpv6: true,
    }
    await must([...guest.within, ...`ip link add eth1 address ${second.macAddress} type veth peer name x1`.split(' ')])
    const third = { id: 'int-cccc9', macAddress: '02:24:19:00:01:9a', ipv4Addresses: ['10.99.0.2'] }
    await host.put(anInstance({ id: 'srv-ipv6a', interfaces: [first, second, third] }), EVERY_BYTE)
    const { machine, log, metadata } = await boot(t, guest)
    t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), 'srv-ipv6a\n')
    t.strictSame(await machine.read('/var/lib/cloud/instance/user-data.txt'), EVERY_BYTE, 'binary, of the maximum size')
    t.strictSame(await authorizedKeys(machine), [ADA])
    const { macs } = (metadata['network'] as { interfaces: { macs: Record<string, object> } }).interfaces
    t.strictSame(Object.keys(macs).sort(), [first.macAddress, second.macAddress])
    t.match(log, `'eth1': {'dhcp4': True, 'dhcp4-overrides': {'route-metric': 200}, 'dhcp6': True`)
    t.strictSame(await host.refusals(), [], 'every request got a 200')
  })

  t.test('C7: gets compressed user-data as published and decompresses it itself', async (t) => {
    const { guest, first } = await host.addGuest()
    const packed = gzipSync(SCRIPT)
    await host.put(
      anInstance({ id: 'srv-gzip0', interfaces: [first], publicKeys: [{ user: 'usr-bobbb', key: BOB }] }),
      packed,
    )
    const { machine, log } = await boot(t, guest)
    t.strictSame(await machine.read('/var/lib/cloud/instance/user-data.txt'), packed)
    t.equal(await text(machine, '/var/lib/cloud/instance/scripts/part-001'), SCRIPT)
    t.strictSame(await authorizedKeys(machine), [BOB])
    t.strictSame(warnings(log), [])
  })

  t.test('boots without user-data and without keys', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-plain', interfaces: [first], publicKeys: [] }), 'none')
    const before = await host.refusals()
    const { machine, log } = await boot(t, guest)
    t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), 'srv-plain\n')
    t.equal(await text(machine, '/var/lib/cloud/instance/user-data.txt'), '')
    t.strictSame(await authorizedKeys(machine), [])
    t.strictSame(warnings(log), [])
    t.strictSame(
      await host.refusals(before),
      ['imds_requests_total{route="/{version}/user-data",method="GET",status="404",reason="not-found"} 1'],
      'only user-data is 404',
    )
  })

  t.test('G2: waits for a record that is published while it boots', async (t) => {
    const { guest, first } = await host.addGuest()
    const booting = boot(t, guest)
    await until(
      async () => (await host.refusals()).some((line) => line.includes('reason="unknown-peer"')),
      'a refused request of cloud-init',
    )
    await host.put(anInstance({ id: 'srv-later', interfaces: [first] }), Buffer.from(SCRIPT))
    const { machine } = await booting
    t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), 'srv-later\n')
    t.equal(await text(machine, '/var/lib/cloud/instance/user-data.txt'), SCRIPT)
  })
})

/**
 * Boots a guest, which stops with the test. `log` is the log of cloud-init; `metadata` is the tree as cloud-init parsed
 * it.
 */
async function boot(
  t: Test,
  guest: Guest,
): Promise<{ machine: Machine; log: string; metadata: Record<string, unknown> }> {
  const machine = await startMachine(guest)
  t.teardown(() => machine.stop())
  await machine.write('/etc/cloud/cloud.cfg.d/99_test.cfg', CONFIGURATION)
  let log = ''
  for (const stage of [['--local'], []]) {
    const { status, stderr } = await machine.run(['cloud-init', 'init', ...stage])
    log += stderr
    if (!t.equal(status, 0, `cloud-init init ${stage.join()}`)) t.comment(log)
  }
  const data = JSON.parse(await text(machine, '/run/cloud-init/instance-data.json')) as {
    ds: { 'meta-data': Record<string, unknown> }
  }
  return { machine, log, metadata: data.ds['meta-data'] }
}

function warnings(log: string): string[] {
  return log.split('\n').filter((line) => /\[(WARNING|ERROR|CRITICAL)\]|Traceback/.test(line))
}

async function text(machine: Machine, path: string): Promise<string> {
  return (await machine.read(path)).toString()
}

/** The keys of the default user, sorted because cloud-init writes them in any order. */
async function authorizedKeys(machine: Machine): Promise<string[]> {
  return (await text(machine, '/home/debian/.ssh/authorized_keys'))
    .split('\n')
    .filter((line) => line !== '')
    .sort()
}
