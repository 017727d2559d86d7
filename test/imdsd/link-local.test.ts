/**
 * OpenStack's link-local address: guests are identified by their links (contract E1), whatever addresses they choose.
 */
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import {
  curl,
  giveLinkLocal,
  LINK_LOCAL_LISTENER,
  startFirewallHost,
  WITH_LINK_LOCAL,
  type FirewallGuest,
} from '../support/netns/firewall-host.ts'
import { must, startChild } from '../support/programs/processes.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { executed } from '../tools/documents.ts'

const skip = withoutNamespaces()
const GIVE_ADDRESS = executed('docs/install.md', 'link-local')
const ID = '/latest/meta-data/instance-id'
const url = (path = ID) => `http://[fe80::a9fe:a9fe%25eth0]${path}`
const TOKEN = 'X-aws-ec2-metadata-token'
const GET_TOKEN = ['--request', 'PUT', '--header', `${TOKEN}-ttl-seconds: 60`]

/** The record of a guest that has no other address than its link-local one. */
const only = ({ name, macAddress }: FirewallGuest, change: Record<string, unknown> = {}) => ({
  interfaces: [{ id: `int-${name}`, macAddress }],
  options: { httpProtocolIpv6: 'enabled' },
  ...change,
})

const TAGS = { httpProtocolIpv6: 'enabled', instanceMetadataTags: 'enabled' }

/** The body of a response. */
async function get({ within }: { readonly within: readonly string[] }, args: readonly string[] = [], from = url()) {
  return (await must([...within, 'curl', '-sSf', '--globoff', '--max-time', '5', ...args, from])).toString()
}

/** Sends two requests on one connection from port 5000, half a second apart. Prints the bodies. */
const TWICE = `
  const agent = new (require('node:http').Agent)({ keepAlive: true, maxSockets: 1 })
  const ask = () => new Promise((resolve, reject) => {
    require('node:http').get({ host: 'fe80::a9fe:a9fe%eth0', path: '${ID}', localPort: 5000, agent }, async (response) => {
      resolve(Buffer.concat(await response.toArray()).toString())
    }).on('error', reject)
  })
  ask().then((first) => setTimeout(async () => { console.log(first, await ask()); process.exit() }, 500))`

const ip = ({ within }: { readonly within: readonly string[] }, words: string) =>
  must([...within, 'ip', ...words.split(' ')])

/** The packets that a guest's own counter of an expression has seen. */
async function counterOf(guest: FirewallGuest, expression: string): Promise<() => Promise<number>> {
  await must([...guest.within, 'nft', '-f', '-'], {
    input: `table inet seen { counter c { }; chain in { type filter hook prerouting priority 0; ${expression} counter name c; }; }`,
  })
  return async () =>
    Number(/packets (\d+)/.exec((await must([...guest.within, 'nft', 'list counter inet seen c'])).toString())?.[1])
}

t.test('E1: a guest is identified by its link at the link-local address', { skip }, async (t) => {
  const host = await startFirewallHost(t, WITH_LINK_LOCAL)
  const [alpha, bravo, nobody] = [
    await host.addGuest('alpha'),
    await host.addGuest('bravo'),
    await host.addGuest('nobody'),
  ]
  // all of them have one MAC address and one link-local address
  const guests = [alpha, bravo].map((guest) => ({ ...guest, macAddress: '02:24:19:00:01:aa' }))
  for (const guest of [...guests, nobody]) {
    await ip(guest, 'link set eth0 address 02:24:19:00:01:aa')
    await giveLinkLocal(host, guest, GIVE_ADDRESS)
  }
  const [first, second] = guests as [FirewallGuest, FirewallGuest]
  for (const guest of guests) await host.put(guest, only(guest))

  await t.test('E2, G2: before there are rules, a link of no instance gets 503', async (t) => {
    const direct = `http://[${LINK_LOCAL_LISTENER}]${ID}`
    for (const guest of [first, nobody])
      await ip(guest, `-6 route add ${LINK_LOCAL_LISTENER} via fe80::a9fe:a9fe dev eth0 src fe80::1`)
    await until(async () => (await curl(first, [], direct)) === 200, 'the record')
    t.equal(await get(first, [], direct), 'srv-alpha')
    t.equal(await curl(nobody, [], direct), 503)
    t.equal(await curl(first), 503, 'by its IPv4 address, which is in no record')
    t.equal(await curl(first, [], url()), 'refused', 'the rules serve the link-local address')
  })

  const firewall = await host.startFirewall()
  for (const guest of guests)
    t.match(await host.imdsctl('wait', `srv-${guest.name}`, '--revision', '1', '--timeout', '20'), { status: 0 })

  await t.test(
    'two guests with one MAC, address and port get their own data, also if the host tracks connections',
    async (t) => {
      await must([...host.hypervisor.within, 'nft', '-f', '-'], {
        input: `table inet tracks { chain in { type filter hook input priority 0; ct state invalid drop; }; chain out { type filter hook output priority 0; ct state invalid drop; }; }`,
      })
      const both = await Promise.all(
        guests.map(async ({ within }) => (await must([...within, process.execPath, '-e', TWICE])).toString()),
      )
      t.same(both, ['srv-alpha srv-alpha\n', 'srv-bravo srv-bravo\n'])
      await host.nft('delete', 'table', 'inet', 'tracks')
    },
  )

  await t.test('only its own link and MAC address with a link-local address reach the service', async (t) => {
    const dropped = async (guest: FirewallGuest, args: readonly string[], where = url()) => {
      const before = await host.counted('unknown_peers')
      const outcome = await curl(guest, ['--max-time', '1', ...args], where)
      return [outcome, (await host.counted('unknown_peers')) > before]
    }
    t.same(await dropped(nobody, []), ['no response', true], 'a link that no record has')
    t.same(
      await dropped(first, [], `http://[${LINK_LOCAL_LISTENER}]${ID}`),
      ['no response', true],
      'the listener itself',
    )
    await ip(first, '-6 address add 2a02:1348:178::2/64 dev eth0 nodad')
    t.same(await dropped(first, ['--interface', '2a02:1348:178::2']), ['no response', true], 'a global address')
    await ip(first, '-6 address del 2a02:1348:178::2/64 dev eth0')
    await ip(first, 'link set eth0 address 02:24:19:00:01:bb')
    t.same(await dropped(first, []), ['no response', true], 'another MAC address')
    await ip(first, 'link set eth0 address 02:24:19:00:01:aa')
    await ip(host.hypervisor, '-6 neighbour flush dev tap-int-alpha')
    await ip(first, '-6 address add fe80::a/64 dev eth0 nodad')
    await ip(first, '-6 address del fe80::1/64 dev eth0')
    t.equal(await get(first), 'srv-alpha', 'another link-local address is its own')
    const before = await host.counted('fragments')
    await must([...first.within, 'sh', '-c', 'ping -6 -c 1 -W 1 -s 3000 fe80::a9fe:a9fe%eth0 || true'])
    t.equal(await host.counted('fragments'), before + 3)
  })

  await t.test('D3, D6: its session token is bound to the instance, and has its hop limit', async (t) => {
    await host.putAndWait(first, only(first, { options: { httpProtocolIpv6: 'enabled', httpTokens: 'required' } }))
    const limited = await counterOf(first, 'ip6 saddr fe80::a9fe:a9fe ip6 hoplimit 1 tcp sport 80')
    t.equal(await curl(first, [], url()), 401)
    t.equal(await limited(), 0)
    const token = await get(first, GET_TOKEN, url('/latest/api/token'))
    t.ok((await limited()) > 0)
    t.equal(await get(first, ['--header', `${TOKEN}: ${token}`]), 'srv-alpha')
    t.equal(await curl(second, ['--header', `${TOKEN}: ${token}`], url()), 401)
    await host.putAndWait(first, {
      interfaces: [{ id: 'int-alpha', macAddress: first.macAddress, ipv4Addresses: [first.address] }],
      options: { httpProtocolIpv6: 'enabled', httpTokens: 'required', httpPutResponseHopLimit: 3 },
    })
    t.equal(await curl(first, ['--header', `${TOKEN}: ${token}`]), 200, 'over IPv4')
    await get(first, GET_TOKEN, url('/latest/api/token'))
    t.equal(await curl(first, [], url()), 401, 'the changed rules serve it')
  })

  await t.test('H1: a held request gets the change of its own guest', async (t) => {
    await host.putAndWait(first, only(first, { tags: { a: '1' }, options: TAGS }))
    const path = '/latest/meta-data/tags/instance/a?wait_for_change=true&timeout_sec=20&last_etag='
    const etag = /etag: "(.*)"/i.exec(await get(first, ['--head'], url(path.split('?', 1)[0])))?.[1] ?? ''
    const held = get(first, ['--max-time', '25'], url(`${path}${etag}`))
    await until(async () => /^imds_held_requests 1$/m.test(await host.operator('/metrics')), 'the held request')
    await host.put(second, only(second, { tags: { a: '9' }, options: TAGS }))
    await host.put(first, only(first, { tags: { a: '2' }, options: TAGS }))
    t.equal(await held, '2')
  })

  await t.test('E1: httpProtocolIpv6 applies', async (t) => {
    await host.putAndWait(second, only(second, { options: {} }))
    t.same([await curl(second, [], url()), await curl(first, [], url())], [403, 200])
    await host.putAndWait(second, only(second))
    t.equal(await curl(second, [], url()), 200)
  })

  await t.test('no connection is tracked, and no packet is reassembled', async (t) => {
    t.notMatch(await host.nft('list', 'table', 'inet', 'imds'), /\b(ct|tproxy|dnat|snat|redirect)\b/)
    const seen =
      'table inet seen { counter c { }; chain in { type filter hook prerouting priority -350; exthdr frag exists counter name c; }; }'
    await must([...host.hypervisor.within, 'nft', '-f', '-'], { input: seen })
    const own = 'ip -6 -oneline address show dev tap-int-alpha | grep -v a9fe | sed "s/.*inet6 //;s/[/].*//"'
    const address = (await must([...host.hypervisor.within, 'sh', '-c', own])).toString().trim()
    await must([...first.within, 'ping', '-6', '-c', '1', '-W', '2', '-s', '3000', `${address}%eth0`])
    t.match(await host.nft('list', 'counter', 'inet', 'seen', 'c'), 'packets 3 ')
    await host.nft('delete', 'table', 'inet', 'seen')
  })

  t.notMatch(firewall.output(), 'another program')
})

t.test('E1, E3: when a link gets another owner, no connection of the former one is answered', { skip }, async (t) => {
  const host = await startFirewallHost(t, WITH_LINK_LOCAL)
  const firewall = await host.startFirewall()
  /** Publishes an instance with the interface int-port, and waits until it is served. */
  const publish = async (guest: FirewallGuest, id: string) => {
    const revision = String(await host.put(guest, only(guest, { id })))
    t.match(await host.imdsctl('wait', id, '--revision', revision), { status: 0 })
    return Number(revision)
  }
  const addGuest = async () => {
    const guest = await host.addGuest('port')
    await giveLinkLocal(host, guest, GIVE_ADDRESS)
    return guest
  }

  const guest = await addGuest()
  const first = await publish(guest, 'srv-first')
  const before = await askOften(guest)
  t.teardown(() => before.stop())
  await until(() => before.bodies.includes('srv-first'), 'a response')
  await host.store.remove('srv-first', first)
  const second = await publish(guest, 'srv-second')
  await until(() => before.bodies.at(-1) === 'closed', 'the end of the connection')
  t.notOk(before.bodies.includes('srv-second'), 'the link stays')
  t.equal(await get(guest), 'srv-second')

  const open = await askOften(guest)
  t.teardown(() => open.stop())
  await until(() => open.bodies.includes('srv-second'), 'a response')
  await ip(host.hypervisor, 'link delete tap-int-port')
  await host.store.remove('srv-second', second)
  const later = await addGuest()
  await publish(later, 'srv-later')
  t.equal(await get(later), 'srv-later', 'another link has the name')
  t.notOk(open.bodies.includes('srv-later'))
  t.notMatch(firewall.output(), 'another program')
})

/** Sends a request five times a second on one connection. `bodies`: of the responses; `closed` when it has ended. */
async function askOften({ within }: FirewallGuest): Promise<{ bodies: readonly string[]; stop: () => Promise<void> }> {
  const child = await startChild([
    ...within,
    process.execPath,
    '-e',
    `const socket = require('node:net').connect({ host: 'fe80::a9fe:a9fe%eth0', port: 80 }, () => console.log('up'))
    setInterval(() => socket.write('GET ${ID} HTTP/1.1\\r\\n\\r\\n'), 200)
    socket.on('data', (data) => console.log(String(data).split('\\r\\n').at(-1)))
    socket.on('error', () => {}).on('close', () => console.log('closed'))
    process.stdin.on('end', () => process.exit()).resume()`,
  ])
  const bodies: string[] = []
  child.onLine((line) => bodies.push(line))
  return { bodies, stop: () => child.stop() }
}
