/**
 * systemd's metadata client, systemd-imdsd: it finds the service by deploy/guest/90-imds.hwdb or by the kernel's command
 * line, and understands every answer. Debian 12 has none, so its requests are replayed. With IMDS_TEST_LONG that of
 * Debian's sid runs, unpacked beside the system.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { startMachine, type Machine } from '../support/netns/guest-machine.ts'
import { startHost, type FirstInterface, type Host } from '../support/netns/host.ts'
import { SERVICE, withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { unpackRelease } from '../support/programs/debian-release.ts'
import { must, run } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'

const HWDB = new URL('../../deploy/guest/90-imds.hwdb', import.meta.url).pathname
/** The SMBIOS strings of a machine with this manufacturer, as the kernel joins them. */
const modalias = (vendor: string) => `dmi:bvnSeaBIOS:bvr1:bd01/01/2026:svn${vendor}:pnguest:pvr1:cvnQEMU:ct1:`
const ADA = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example'
const BOB = 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob'
const CLOUD_IP = { id: 'cip-aaaaa', publicIpv4: '198.51.100.7', publicIpv6: '2a02:1348:ffff::7', fqdn: 'a.example.com' }
const CREDENTIALS = '{"systemd.credentials": [{"name": "motd", "text": "hello"}]}'

/** The mark of systemd-imdsd's packets, and the table of the routes that it uses. */
const MARK = 0x7fff0815
/** What systemd-networkd makes of the network that systemd-imdsd writes in its mode `locked`. */
const PROHIBIT = ['route', 'add', 'prohibit', SERVICE]
const ALLOW = [
  ['route', 'add', SERVICE, 'dev', 'eth0', 'scope', 'link', 'table', String(MARK)],
  ['rule', 'add', 'fwmark', String(MARK), 'table', String(MARK)],
]
/** The same as sections of its file. */
const PROHIBIT_SECTION = `[Route]\nDestination=${SERVICE}\nType=prohibit\n`
const ALLOW_SECTIONS = [
  `[Route]\nDestination=${SERVICE}\nScope=link\nTable=0x7FFF0815\n`,
  '[RoutingPolicyRule]\nFamily=ipv4\nFirewallMark=0x7FFF0815\nTable=0x7FFF0815\n',
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

const isLong = process.env['IMDS_TEST_LONG'] !== undefined
const notLong = !isLong && 'only IMDS_TEST_LONG downloads the systemd of Debian sid (20 MB)'
if (isLong) t.setTimeout(300_000)

t.test("the client of Debian's sid", { skip: withoutNamespaces() || notLong }, async (t) => {
  const directory = mkdtempSync('/var/tmp/imds-systemd-') // the guest has a /tmp of its own
  t.teardown(() => rmSync(directory, { recursive: true }))
  const unpacked = unpackRelease(directory, 'sid', ['systemd-imds', 'udev'], { dependencies: true })
  if ('missing' in unpacked) {
    t.pass('skipped', { skip: unpacked.missing })
    return
  }
  const { root } = unpacked
  const host = await startHost(t)

  t.test('imports the first key, the host name and credentials, found by udev', async (t) => {
    const { machine } = await start(t, host, root, 'srv-imds0', Buffer.from(CREDENTIALS), (first) => ({
      interfaces: [{ ...first, cloudIps: [CLOUD_IP] }],
      publicKeys: [
        { user: 'usr-xl7gd', key: ADA },
        { user: 'usr-bob00', key: BOB },
      ],
    }))
    await useHwdb(t, machine, root)
    t.equal((await imds(machine, root, ['--import'])).status, 0)
    const credential = async (name: string) => (await machine.read(join(root, 'run/credstore', name))).toString()
    t.equal(await credential('firstboot.hostname'), 'srv-imds0.gb1.example.com')
    t.equal(await credential('ssh.authorized_keys.root'), `${ADA}\n`)
    t.equal(await credential('motd'), 'hello')
    const { stdout } = await imds(machine, root, [])
    for (const value of ['imds', 'srv-imds0.gb1.example.com', 'gb1', 'gb1-a', CLOUD_IP.publicIpv4, CLOUD_IP.publicIpv6])
      t.match(stdout.toString(), new RegExp(`: ${value.replaceAll('.', '\\.')}$`, 'm'))
  })

  t.test('imports nothing, without an error, where keys, public address and user-data are missing', async (t) => {
    const { machine } = await start(t, host, root, 'srv-imds1', 'none', (first) => ({
      interfaces: [first],
      publicKeys: [],
    }))
    await useHwdb(t, machine, root)
    const { status, stderr } = await imds(machine, root, ['--import'])
    t.equal(status, 0, stderr)
    t.match(stderr, 'No IMDS data available')
    await machine.run(['rm', '-r', join(root, 'run/imds/cache')])
    const withPages = commandLine().replace(/ systemd\.imds\.data_url_suffix=\S+/, '')
    t.not((await imds(machine, root, ['--import'], withPages)).status, 0, 'it takes a 404 with a body for an error')
  })

  t.test('takes user-data with its first line, and ignores a script', async (t) => {
    const marked = await start(t, host, root, 'srv-imds2', Buffer.from(`#systemd-userdata\n${CREDENTIALS}`))
    t.equal((await imds(marked.machine, root, ['--import'], commandLine())).status, 0)
    t.equal((await marked.machine.read(join(root, 'run/credstore/motd'))).toString(), 'hello')
    const script = await start(t, host, root, 'srv-imds3', Buffer.from('#!/bin/sh\n'))
    t.match(await imds(script.machine, root, ['--import'], commandLine()), {
      status: 0,
      stderr: 'does not look like JSON or systemd userdata',
    })
  })

  t.test('fetches a new token when its own is refused', async (t) => {
    const { machine } = await start(t, host, root, 'srv-imds5', 'none')
    const cache = join(root, 'run/imds/cache/eth0')
    await machine.run(['mkdir', '-p', cache])
    await machine.write(join(root, 'run/imds/ifname'), 'eth0')
    await machine.write(join(cache, 'token'), '{"token": "of an earlier key", "validUntilUSec": 9000000000000000}')
    const { status, stdout, stderr } = await imds(machine, root, ['-K', 'hostname'], commandLine())
    t.equal(status, 0, stderr)
    t.equal(stdout.toString(), 'srv-imds5.gb1.example.com')
    t.notMatch(await machine.read(join(cache, 'token')), 'earlier')
  })

  t.test('is found by the command line, and reaches the service in its own mode locked', async (t) => {
    const { machine, guest, first } = await start(t, host, root, 'srv-imds4', 'none')
    const generator = '/usr/lib/systemd/system-generators/systemd-imds-generator'
    t.match(await inRoot(machine, root, [generator, '/run', '/run', '/run'], commandLine()), { status: 0 })
    for (const unit of [
      'sysinit.target.wants/systemd-imds-import.service',
      'sockets.target.wants/systemd-imdsd.socket',
    ])
      t.equal((await machine.run(['test', '-L', join(root, 'run', unit)])).status, 0, unit)
    const network = async (mode: string) => {
      const line = commandLine().replace(/network=\w+/, `network=${mode}`)
      const { status, stderr } = await inRoot(
        machine,
        root,
        ['/usr/lib/systemd/systemd-imdsd', '--setup-network'],
        line,
      )
      t.equal(status, 0, stderr)
      return (await machine.read(join(root, 'run/systemd/network/85-imds-early.network'))).toString()
    }
    const locked = await network('locked')
    for (const section of [PROHIBIT_SECTION, ...ALLOW_SECTIONS]) t.ok(locked.includes(section), section)
    const unlocked = await network('unlocked')
    t.notOk(unlocked.includes('prohibit'))
    for (const section of ALLOW_SECTIONS) t.ok(unlocked.includes(section), section)
    await lock(guest, gatewayOf(first))
    t.not((await curl(guest)).status, 0)
    const { stdout } = await imds(machine, root, ['--well-known=hostname'], commandLine())
    t.equal(stdout.toString(), 'srv-imds4.gb1.example.com')
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
  await installHwdb(machine, '/')
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

/** Runs the example of docs/guests.md on a machine, in a root directory with systemd-hwdb. */
async function installHwdb(machine: Machine, root: string): Promise<void> {
  await machine.run(['mkdir', '-p', '/run/image/deploy/guest'])
  await machine.write('/run/image/deploy/guest/90-imds.hwdb', readFileSync(HWDB, 'utf8'))
  const commands = executed('docs/clients.md', 'hwdb')
    .replace(' /etc/', ` ${join(root, 'etc')}/`)
    .replace('systemd-hwdb', `chroot ${root} systemd-hwdb`)
  const { status, stderr } = await machine.run(['sh', '-euc', `cd /run/image\n${commands}`])
  if (status !== 0) throw new Error(stderr)
}

/** Puts an instance, and starts its guest, which has the unpacked systemd in the directory `root`. */
async function start(
  t: Test,
  host: Host,
  root: string,
  id: string,
  userData: Buffer | 'none',
  change: (first: FirstInterface) => Record<string, unknown> = (first) => ({ interfaces: [first] }),
) {
  const { guest, first } = await host.addGuest()
  await host.put(anInstance({ id, fqdn: `${id}.gb1.example.com`, ...change(first) }), userData)
  const machine = await startMachine(guest)
  t.teardown(() => machine.stop())
  const { status, stderr } = await machine.run([
    'sh',
    '-euc',
    `cd ${root}
    for merged in bin lib lib64 sbin; do [ -e $merged ] || ln -s usr/$merged $merged; done
    mkdir -p proc dev run sys tmp
    mount --rbind /proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmpfs run
    mount -t tmpfs tmpfs sys
    mkdir run/imds
    mkdir -p sys/class/dmi sys/devices/virtual/dmi/id
    ln -s ../../devices/virtual/dmi/id sys/class/dmi/id
    ln -s ../../../../class/dmi sys/devices/virtual/dmi/id/subsystem
    echo MODALIAS=${modalias('imds')} > sys/devices/virtual/dmi/id/uevent
    echo ${modalias('imds')} > sys/devices/virtual/dmi/id/modalias`,
  ])
  if (status !== 0) throw new Error(stderr)
  return { machine, guest, first }
}

/** Installs the hardware database, and makes udev's entry of the machine from what its rules find there. */
async function useHwdb(t: Test, machine: Machine, root: string): Promise<void> {
  await installHwdb(machine, root)
  const { stdout } = await inRoot(machine, root, ['/usr/bin/udevadm', 'test', '/sys/class/dmi/id'], '')
  const found = Array.from(stdout.toString().matchAll(/^\s+(IMDS_\w+=.*)$/gm), ([, property]) => `E:${property!}\n`)
  t.ok(found.length > 0, 'udev finds the service')
  await machine.run(['mkdir', '-p', join(root, 'run/udev/data')])
  await machine.write(join(root, 'run/udev/data/+dmi:id'), `${found.join('')}V:1\n`)
}

/** Runs systemd-imds, which starts systemd-imdsd. `line`: the kernel's command line. */
function imds(machine: Machine, root: string, args: readonly string[], line = '') {
  return inRoot(machine, root, ['/usr/lib/systemd/systemd-imds', ...args], line)
}

function inRoot(machine: Machine, root: string, command: readonly string[], line: string) {
  // there is no sysfs with a DMI device here
  const environment = [
    'SYSTEMD_DEVICE_VERIFY_SYSFS=0',
    'SYSTEMD_LOG_LEVEL=info',
    'RUNTIME_DIRECTORY=/run/imds',
    `SYSTEMD_PROC_CMDLINE=${line}`,
  ]
  return machine.run(['env', ...environment, 'chroot', root, ...command])
}
