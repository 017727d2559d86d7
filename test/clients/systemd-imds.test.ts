/**
 * systemd's metadata client, systemd-imdsd: it finds the service by deploy/guest/90-imds.hwdb or by the kernel's command
 * line, and understands every answer. Debian 12 has none, so its requests are replayed.
 */
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { startMachine, type Machine } from '../support/netns/guest-machine.ts'
import { startHost, type FirstInterface } from '../support/netns/host.ts'
import { SERVICE, withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { must, run } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'

const HWDB = new URL('../../deploy/guest/90-imds.hwdb', import.meta.url).pathname
/** The SMBIOS strings of a machine with this manufacturer, as the kernel joins them. */
const modalias = (vendor: string) => `dmi:bvnSeaBIOS:bvr1:bd01/01/2026:svn${vendor}:pnguest:pvr1:cvnQEMU:ct1:`
const CLOUD_IP = { id: 'cip-aaaaa', publicIpv4: '198.51.100.7', publicIpv6: '2a02:1348:ffff::7', fqdn: 'a.example.com' }

/** The mark of systemd-imdsd's packets, and the table of the routes that it uses. */
const MARK = 0x7fff0815
/** What systemd-networkd makes of the network that systemd-imdsd writes in its mode `locked`. */
const PROHIBIT = ['route', 'add', 'prohibit', SERVICE]
const ALLOW = [
  ['route', 'add', SERVICE, 'dev', 'eth0', 'scope', 'link', 'table', String(MARK)],
  ['rule', 'add', 'fwmark', String(MARK), 'table', String(MARK)],
]
/** Prints the status line of a request whose packets have the mark. */
const MARKED_REQUEST = `
import socket
s = socket.socket()
s.settimeout(5)
s.setsockopt(socket.SOL_SOCKET, 36, ${MARK})
s.connect(('${SERVICE}', 80))
s.sendall(b'GET /latest/meta-data/hostname HTTP/1.0\\r\\n\\r\\n')
print(s.recv(99).decode().split('\\r\\n')[0])`

t.test('the command line has the same values as the hardware database', (t) => {
  const inHwdb = Array.from(
    readFileSync(HWDB, 'utf8').matchAll(/^ IMDS_(\w+)=(.*)$/gm),
    ([, name, value]) => `systemd.imds.${name!.toLowerCase().replace(/^key_/, 'key.')}=${value!}`,
  )
  const [enabled, imports, network, ...options] = commandLine().split(' ')
  t.same(
    [enabled, imports, network],
    ['systemd.imds=yes', 'systemd.imds.import=yes', executed('docs/clients.md', 'unlocked').trim()],
  )
  t.same(options.toSorted(), inHwdb.toSorted())
  t.end()
})

t.test('replayed requests', { skip: withoutNamespaces() || without('systemd-hwdb') }, async (t) => {
  const host = await startHost(t)

  t.test('every key that the hardware database has is answered', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-full0', interfaces: [{ ...first, cloudIps: [CLOUD_IP] }] }), Buffer.from('{}'))
    const client = await replay(t, guest)
    t.same(Object.keys(client.keys).toSorted(), [
      ...['HOSTNAME', 'IPV4_PUBLIC', 'IPV6_PUBLIC', 'REGION', 'SSH_KEY', 'USERDATA', 'ZONE'],
    ])
    for (const key of Object.keys(client.keys)) t.match(await client.get(key), { status: 200, body: /./ }, key)
  })

  t.test('A7: a key that the instance lacks is a 404 without a body, and a bad token a 401 without one', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-bare0', interfaces: [first], publicKeys: [] }), 'none')
    const client = await replay(t, guest)
    for (const key of ['IPV4_PUBLIC', 'IPV6_PUBLIC', 'SSH_KEY', 'USERDATA'])
      t.same(await client.get(key), { status: 404, body: '' }, key)
    t.same(await client.get('HOSTNAME', 'x'), { status: 401, body: '' })
  })

  t.test('in the mode locked only the client reaches the service, and unlocked every program does', async (t) => {
    const { guest, first } = await host.addGuest()
    await host.put(anInstance({ id: 'srv-lock0', interfaces: [first] }), 'none')
    await lock(guest, gatewayOf(first))
    t.not((await curl(guest)).status, 0)
    const marked = await must([...guest.within, 'python3', '-c', MARKED_REQUEST])
    t.equal(marked.toString(), 'HTTP/1.1 200 OK\n')
    await must([...guest.within, 'ip', 'route', 'delete', 'prohibit', SERVICE])
    t.match(await curl(guest), { status: 0, stdout: /srv-lock0/ })
    t.equal((await must([...guest.within, 'python3', '-c', MARKED_REQUEST])).toString(), 'HTTP/1.1 200 OK\n')
  })
})

function commandLine(): string {
  return readFileSync(new URL('../../deploy/guest/systemd-imds.cmdline', import.meta.url), 'utf8').trim()
}

/** Gives a guest whose way to the service is its default route the routes of the mode locked. */
async function lock({ within }: Guest, gateway: string): Promise<void> {
  const before = [
    ['route', 'delete', SERVICE],
    ['route', 'add', 'default', 'via', gateway],
  ]
  for (const command of [...before, PROHIBIT, ...ALLOW]) await must([...within, 'ip', ...command])
}

const gatewayOf = ({ ipv4Addresses: [address] }: FirstInterface) => address!.replace(/\.2\/.*$/, '.1')

/** The first example of docs/guests.md, without a token. */
function curl(guest: Guest) {
  return run([...guest.within, 'curl', '-s', '-m', '5', `http://${SERVICE}/latest/meta-data/instance-id`])
}

/** A machine's keys in the hardware database, and requests for them as systemd-imdsd sends them. */
async function replay(t: Test, guest: Guest) {
  const machine = await startMachine(guest)
  t.teardown(() => machine.stop())
  await installHwdb(machine)
  const query = async (vendor: string) => {
    const { stdout } = await machine.run(['systemd-hwdb', 'query', modalias(vendor)])
    return Object.fromEntries(
      Array.from(stdout.toString().matchAll(/^IMDS_(\w+)=(.*)$/gm), ([, key, value]) => [key!, value!]),
    )
  }
  t.same(await query('QEMU'), {}, 'on other machines it finds nothing')
  const found = await query('imds')
  t.match(found, { VENDOR: 'imds', ADDRESS_IPV4: SERVICE })
  const targetOf = (url: string) => url.replace(`http://${SERVICE}`, '')
  const headers = { 'User-Agent': 'systemd 262', Accept: '*/*' }
  const token = await guest.ask({
    method: 'PUT',
    path: targetOf(found['TOKEN_URL']!),
    headers: { ...headers, [found['REFRESH_HEADER_NAME']!]: '900' },
  })
  t.equal(token.status, 200)
  const keys = Object.fromEntries(
    Object.entries(found).flatMap(([name, path]) =>
      name.startsWith('KEY_') ? [[name.slice('KEY_'.length), path]] : [],
    ),
  )
  const get = async (key: string, withToken = token.body.toString()) => {
    const { status, body } = await guest.ask({
      path: targetOf(`${found['DATA_URL']!}${keys[key]!}${found['DATA_URL_SUFFIX'] ?? ''}`),
      headers: { ...headers, [found['TOKEN_HEADER_NAME']!]: withToken },
    })
    return { status, body: body.toString() }
  }
  return { keys, get }
}

/** Runs the example of docs/clients.md on a machine. */
async function installHwdb(machine: Machine): Promise<void> {
  await machine.run(['mkdir', '-p', '/run/image/deploy/guest'])
  await machine.write('/run/image/deploy/guest/90-imds.hwdb', readFileSync(HWDB, 'utf8'))
  const commands = executed('docs/clients.md', 'hwdb')
  const { status, stderr } = await machine.run(['sh', '-euc', `cd /run/image\n${commands}`])
  if (status !== 0) throw new Error(stderr)
}
