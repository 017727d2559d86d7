/**
 * A response goes to the guest that asked, by its link, also after its address has moved, with the link or without. And
 * guests of one bridge, and of networks that only the firewall separates.
 */
import t, { type Test } from 'tap'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'
import { until } from '../support/programs/daemon.ts'
import { curl, OPERATOR, startFirewallHost } from '../support/netns/firewall-host.ts'
import { must, startChild } from '../support/programs/processes.ts'
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import { SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'

const skip = withoutNamespaces()
const [BLUE = ''] = OPERATOR.split(':')
const INSTANCE_ID = '/latest/meta-data/instance-id'

/** Counts the packets with data that arrive in a guest from an address of the service. Returns a function that reads the count. */
async function countArriving(
  { within }: { readonly within: readonly string[] },
  from: string,
): Promise<() => Promise<number>> {
  const rules = `add table ip seen; add counter ip seen data; add chain ip seen incoming { type filter hook prerouting priority -300; };
    add rule ip seen incoming ip saddr ${from} tcp sport 80 meta length > 100 counter name data`
  await must([...within, 'nft', rules])
  return async () =>
    Number(/packets (\d+)/.exec((await must([...within, 'nft', 'list counter ip seen data'])).toString())?.[1])
}

/** Sends a request and its FIN in one segment, and acknowledges nothing. */
const ASK_AND_VANISH = `
import socket, subprocess, sys
s = socket.create_connection((sys.argv[1], 80))
subprocess.run(['nft', 'add table ip mute; add chain ip mute out { type filter hook output priority 0; }; add rule ip mute out tcp dport 80 meta length < 60 drop'], check=True)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
s.send(b'GET ${INSTANCE_ID} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
s.shutdown(socket.SHUT_WR)
print('up', flush=True)
sys.stdin.read()
`

for (const [id, whose] of [
  ['int-charlie', 'a link of its own'],
  ['int-bravo', 'the same link, as an interface that moves'],
] as const)
  t.test(
    `E6: what is sent again to a destroyed guest does not reach the next one with its address (${whose})`,
    { skip: skip || without('python3') },
    async (t) => {
      const host = await startFirewallHost(t)
      const ip = (words: string) => must([...host.hypervisor.within, 'ip', ...words.split(' ')])
      const bravo = await host.addGuest('bravo')
      await host.startFirewall()
      const revision = await host.putAndWait(bravo)
      const asking = await startChild([...bravo.within, 'python3', '-c', ASK_AND_VANISH, SERVICE])
      t.teardown(() => asking.stop())
      const orphans = async () =>
        (await must([...host.hypervisor.within, 'ss', '-Htn', 'state', 'last-ack', 'sport', '=', ':80'])).toString()
      await until(async () => (await orphans()) !== '', 'the daemon to close the connection')

      await ip('link delete tap-int-bravo')
      await host.store.remove('srv-bravo', revision)
      const next = { address: `${bravo.address}/30`, gateway: '10.88.1.1', macAddress: '02:24:19:00:01:77' }
      const charlie = await host.hypervisor.addGuest({ ...next, device: `tap-${id}` })
      const seen = await countArriving(charlie, SERVICE)
      const { macAddress } = next
      const interfaces = [{ id, macAddress, ipv4Addresses: [bravo.address] }]
      await host.putAndWait({ ...bravo, ...charlie, name: 'charlie', macAddress }, { interfaces })
      t.not(await orphans(), '', 'the kernel still sends the response to bravo')
      const before = await host.counted('strays')
      const isSent = async () => (await host.counted('strays')) > before || (await seen()) > 0
      await until(isSent, 'the kernel to send it by the new link', 120_000)
      t.equal(await seen(), 0)
      t.equal(await curl(charlie), 200)
      t.ok((await seen()) > 0, 'its own response arrives')
    },
  )

t.test(
  'E4: two networks with the firewall may have one address, each with its own link and route',
  { skip },
  async (t) => {
    const host = await startFirewallHost(t, { IMDS_LISTEN: `red=${SERVICE}:80,blue=${BLUE}:80` })
    const red = await host.addGuest('red')
    const macAddress = '02:24:19:00:01:77'
    const link = { address: `${red.address}/30`, gateway: '10.88.1.1', macAddress, device: 'tap-int-blue' }
    const blue = { ...red, ...(await host.hypervisor.addGuest(link)), name: 'blue', macAddress }
    await must([...blue.within, 'ip', 'route', 'add', BLUE, 'via', link.gateway])
    const sysctl = (words: string) => must([...host.hypervisor.within, 'sysctl', '-qw', words])
    for (const device of ['all', 'tap-int-red', 'tap-int-blue']) await sysctl(`net.ipv4.conf.${device}.rp_filter=1`)
    await host.startFirewall()
    for (const guest of [red, blue])
      await host.put(guest, {
        interfaces: [
          {
            id: `int-${guest.name}`,
            network: guest.name,
            macAddress: guest.macAddress,
            ipv4Addresses: [guest.address],
          },
        ],
      })
    const idAt = async (guest: typeof red, address: string) =>
      (await must([...guest.within, 'curl', '-s', '--max-time', '5', `http://${address}${INSTANCE_ID}`])).toString()

    await t.test('without a route of its own, a response to one reaches nobody', async (t) => {
      const seen = await countArriving(red, BLUE)
      await sysctl('net.ipv4.conf.all.rp_filter=0')
      await sysctl('net.ipv4.conf.tap-int-blue.rp_filter=0')
      await until(async () => (await curl(red)) === 200, 'the rules')
      t.equal(await curl(blue, [], `http://${BLUE}${INSTANCE_ID}`), 'no response')
      t.equal(await seen(), 0)
    })

    await runOnHypervisor(t, host.hypervisor.within)
    for (const device of ['all', 'tap-int-red', 'tap-int-blue']) await sysctl(`net.ipv4.conf.${device}.rp_filter=1`)
    t.same([await idAt(red, SERVICE), await idAt(blue, BLUE)], ['srv-red', 'srv-blue'])
    t.not(await curl(red, [], `http://${BLUE}${INSTANCE_ID}`), 200)
    t.not(await curl(blue), 200)
  },
)

/** Runs the commands of the document. */
async function runOnHypervisor(t: Test, within: readonly string[]): Promise<void> {
  await t.resolves(must([...within, 'sh', '-eu'], { input: executed('docs/firewall.md', 'routes of networks') }))
}

t.test(
  'E5: a guest whose address another instance has got is not answered, with a stopped agent neither',
  { skip },
  async (t) => {
    const host = await startFirewallHost(t)
    const alpha = await host.addGuest('alpha')
    const bravo = await host.addGuest('bravo')
    const firewall = await host.startFirewall()
    const revision = await host.putAndWait(alpha)
    t.equal(await curl(alpha), 200)
    await firewall.stop()
    await host.store.remove('srv-alpha', revision)
    const { macAddress } = bravo
    await host.put(bravo, { interfaces: [{ id: 'int-bravo', macAddress, ipv4Addresses: [alpha.address] }] })
    const ready = async () => JSON.parse(await host.operator('/readyz')) as Readiness
    await until(async () => (await ready()).unconfirmedAddresses === 1, 'the new owner')
    t.equal(await curl(alpha), 503)
    await until(async () => (await ready()).conditions.length > 0, 'the condition')
    t.match((await ready()).conditions, [
      {
        code: 'firewall-not-applied',
        text: /1 addresses: .* of srv-bravo: the rules in the kernel may still give it to another instance/,
      },
    ])
    await host.startFirewall()
    await until(async () => (await ready()).unconfirmedAddresses === 0, 'the rules')
    t.equal(await curl(alpha), 'refused')
  },
)

t.test('on a bridge, MAC and address are checked together for guests on the same link', { skip }, async (t) => {
  const host = await startFirewallHost(t, { IMDS_LINK: 'br0' })
  const [alpha, bravo] = [await host.addGuest('alpha', 'port1'), await host.addGuest('bravo', 'port2')]
  const ip = (words: string) => must([...host.hypervisor.within, 'ip', ...words.split(' ')])
  await ip('link add br0 type bridge')
  for (const [port, gateway] of [
    ['port1', '10.88.1.1/30'],
    ['port2', '10.88.2.1/30'],
  ] as const) {
    await ip(`address del ${gateway} dev ${port}`)
    await ip(`link set ${port} master br0`)
    await ip(`address add ${gateway} dev br0`)
  }
  await ip('link set br0 up')
  await host.startFirewall()
  for (const guest of [alpha, bravo]) await host.putAndWait(guest)
  t.same([await curl(alpha), await curl(bravo)], [200, 200])
  await must([...alpha.within, 'ip', 'address', 'add', `${bravo.address}/32`, 'dev', 'eth0'])
  const before = await host.counted('unknown_peers')
  // if bridges are filtered, the outcome is a reset
  t.not(await curl(alpha, ['--interface', bravo.address]), 200, 'an address of bravo with the MAC of alpha')
  t.ok((await host.counted('unknown_peers')) > before)
})

t.test(
  'E4, G2: if only the firewall separates networks, guests get 503 until its rules are applied',
  { skip },
  async (t) => {
    const [blueAddress] = OPERATOR.split(':') as [string]
    const host = await startFirewallHost(t, { IMDS_LISTEN: `red=${SERVICE}:80,blue=${blueAddress}:80` })
    const alpha = await host.addGuest('alpha')
    const nic = (id: string, network: string) => [
      { id, network, macAddress: alpha.macAddress, ipv4Addresses: [alpha.address] },
    ]
    await host.put(alpha, { interfaces: nic('int-alpha', 'red') })
    // its guest has the same address, on a link that does not exist here
    await host.put(alpha, { id: 'srv-blue', interfaces: nic('int-blue', 'blue') })
    const asBlue = () => curl(alpha, [], `http://${blueAddress}/latest/meta-data/instance-id`)
    const ready = async () => JSON.parse(await host.operator('/readyz')) as Readiness
    const explained = async () => (await host.imdsctl('explain', alpha.address, '--network', 'red')).stdout

    await until(async () => (await ready()).instances === 2, 'both instances')
    t.same([await curl(alpha), await asBlue()], [503, 503])
    const held = /no guest is answered until imds-firewall has applied its rules for this daemon/
    t.match(await ready(), { ready: false, conditions: [{ code: 'firewall-awaited', text: held }] })
    t.match(await explained(), held)

    const open = await startChild([
      ...alpha.within,
      process.execPath,
      '-e',
      `
      require('node:net').connect(80, '${blueAddress}', () => console.log('up')).on('error', () => {})
      process.stdin.on('end', () => process.exit()).resume() // the rules also drop the end of its connection`,
    ])
    t.teardown(() => open.stop())
    const connections = async () =>
      (
        await must([
          ...host.hypervisor.within,
          'ss',
          '--no-header',
          '--tcp',
          'state',
          'established',
          'sport',
          '=',
          ':80',
        ])
      ).toString()
    t.not(await connections(), '')
    await host.startFirewall()
    await until(async () => (await ready()).ready, 'the rules of this daemon')
    t.equal(await connections(), '', 'what was sent before the rules is not answered after them')
    t.same([await curl(alpha), await asBlue()], [200, 'refused'])
    t.match(await explained(), /metadata/)

    await t.test('a new daemon waits for rules of its own, and needs nobody for that', async (t) => {
      await host.restartDaemon()
      await until(async () => (await curl(alpha)) === 200, 'the rules of the new daemon')
      t.equal(await asBlue(), 'refused')
    })
  },
)
