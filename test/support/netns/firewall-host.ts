/**
 * A host whose daemon requires the firewall. A test starts the firewall agent, adds guests and sends requests from
 * them.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { Test } from 'tap'
import { openStore, type Publisher } from '../../../src/store/open.ts'
import { startDaemon, until, type LogLine } from '../programs/daemon.ts'
import { imdsctl as imdsctlOf } from '../programs/imdsctl.ts'
import { must, run } from '../programs/processes.ts'
import { anInstance } from '../fixtures/instance.ts'
import { makeHypervisor, SERVICE, type Guest, type Hypervisor } from './namespaces.ts'
import { IMDSCTL, programEnvironment } from '../programs/imds.ts'
import { shortDirectory } from '../test-directory.ts'

/** EC2's IPv6 address of the service. */
export const SERVICE6 = 'fd00:ec2::254'
/** The address of the operator API. Guests have a route to it. */
export const OPERATOR = '10.99.0.1:9169'

/** A running firewall agent; `output` is all that it has printed. */
export interface Firewall {
  readonly process: ChildProcess
  readonly output: () => string
  stop(): Promise<void>
}

/** A guest with a name: `alpha` is the instance srv-alpha, with the interface int-alpha on the link tap-int-alpha. */
export interface FirewallGuest extends Guest {
  readonly name: string
  readonly address: string
  readonly macAddress: string
}

/** A running host. */
export interface FirewallHost {
  readonly hypervisor: Hypervisor
  readonly store: Publisher
  /** Replaces the daemon with a new one, whose state directory is empty. */
  restartDaemon(): Promise<void>
  addGuest(name: string, device?: string): Promise<FirewallGuest>
  /** Publishes the next revision of a guest's record. Fields in `change` replace the correct interface and options. */
  put(guest: FirewallGuest, change?: Record<string, unknown>): Promise<number>
  /** Publishes like `put`, then waits with `imdsctl wait`. Returns the revision. */
  putAndWait(guest: FirewallGuest, change?: Record<string, unknown>): Promise<number>
  /** The daemon's unix socket for operators, as `--operator` takes it; the same after a restart. */
  readonly operatorSocket: string
  /** The environment of imdsctl: the daemon's listeners and the rule for links. */
  agentEnvironment(): Readonly<Record<string, string>>
  imdsctl(...args: string[]): ReturnType<typeof imdsctlOf>
  nft(...args: string[]): Promise<string>
  /** The number of packets that a counter of the table has counted. */
  counted(counter: string): Promise<number>
  operator(path: string): Promise<string>
  /** The log of the daemon. */
  log(): readonly LogLine[]
  /** Starts the firewall agent and waits for its first output. `program` is another build of imdsctl. */
  startFirewall(env?: Readonly<Record<string, string>>, program?: string): Promise<Firewall>
}

/** Starts a host that stops with the test. `env` adds to the daemon's environment or overrides it. */
export async function startFirewallHost(
  t: Pick<Test, 'teardown'>,
  env: Readonly<Record<string, string>> = {},
): Promise<FirewallHost> {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const [operatorAddress] = OPERATOR.split(':') as [string]
  for (const address of [`${operatorAddress}/32`, `${SERVICE6}/128`])
    await must([...hypervisor.within, 'ip', 'address', 'add', address, 'dev', 'lo'])
  const directory = shortDirectory(t)
  const url = `file:${directory}`
  const store = await openStore({ url })
  const runDirectory = shortDirectory(t)
  const settings = () => ({
    IMDS_STORE: url,
    IMDS_LISTEN: `${SERVICE}:80`,
    IMDS_OPERATOR_LISTEN: OPERATOR,
    IMDS_OPERATOR_ALLOW: '10.0.0.0/8',
    IMDS_OPERATOR_SOCKET: join(runDirectory, 'operator.sock'),
    IMDS_FIREWALL: 'required',
    IMDS_LINK: 'tap-{interfaceId}',
    ...env,
  })
  const operatorSocket = `unix:${settings().IMDS_OPERATOR_SOCKET}`
  const agentEnvironment = () => {
    const { IMDS_LISTEN, IMDS_OPERATOR_LISTEN, IMDS_OPERATOR_SOCKET, IMDS_LINK } = settings()
    return { IMDS_LISTEN, IMDS_OPERATOR_LISTEN, IMDS_OPERATOR_SOCKET, IMDS_LINK }
  }
  const start = async () => {
    return await startDaemon(t, settings(), hypervisor.within)
  }
  let daemon = await start()
  const imdsctl = (...args: string[]) =>
    // a wait asks the daemon only, by its unix socket
    imdsctlOf(args, { env: agentEnvironment(), within: args[0] === 'wait' ? [] : hypervisor.within })
  const operator = async (path: string) =>
    (
      await must(['curl', '--silent', '--unix-socket', settings().IMDS_OPERATOR_SOCKET, `http://localhost${path}`])
    ).toString()
  const nft = async (...args: string[]) => (await must([...hypervisor.within, 'nft', ...args])).toString()
  let guests = 0
  let revision = 0

  const put: FirewallHost['put'] = async ({ name, address, macAddress }, change = {}) => {
    const interfaces = [{ id: `int-${name}`, macAddress, ipv4Addresses: [address] }]
    const { kind } = await store.put(
      anInstance({ id: `srv-${name}`, revision: ++revision, fqdn: `${name}.example.com`, interfaces, ...change }),
    )
    if (kind !== 'published') throw new Error(`the record of ${name} was not published: ${kind}`)
    return revision
  }
  return {
    hypervisor,
    store,
    put,
    operatorSocket,
    agentEnvironment,
    imdsctl,
    nft,
    operator,
    log: () => daemon.log,
    restartDaemon: async () => {
      await daemon.stop()
      daemon = await start()
    },
    addGuest: async (name, device = `tap-int-${name}`) => {
      const n = String(++guests)
      const [address, macAddress, gateway] = [`10.88.${n}.2`, `02:24:19:00:01:0${n}`, `10.88.${n}.1`]
      const guest = await hypervisor.addGuest({ address: `${address}/30`, gateway, macAddress, device })
      await must([...guest.within, 'ip', 'route', 'add', operatorAddress, 'via', gateway])
      return { ...guest, name, address, macAddress }
    },
    putAndWait: async (guest, change) => {
      const revision = await put(guest, change)
      const { status, stderr } = await imdsctl('wait', `srv-${guest.name}`, '--revision', String(revision))
      if (status !== 0) throw new Error(stderr)
      return revision
    },
    counted: async (counter) => Number(/packets (\d+)/.exec(await nft(`list counter inet imds ${counter}`))?.[1]),
    startFirewall: async (env = {}, program = IMDSCTL) => {
      const args = [...hypervisor.within, process.execPath, program, 'firewall', '--apply', '--watch']
      const child = spawn(args[0]!, args.slice(1), {
        env: { ...programEnvironment(), ...agentEnvironment(), ...env },
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      let output = ''
      for (const stream of [child.stdout, child.stderr])
        stream.setEncoding('utf8').on('data', (text: string) => {
          output += text
        })
      const stop = async () => {
        if (child.exitCode !== null || child.signalCode !== null) return
        child.kill('SIGTERM')
        await once(child, 'exit')
      }
      t.teardown(stop)
      await until(() => output !== '' || child.exitCode !== null, 'the output of the firewall agent')
      return { process: child, output: () => output, stop }
    },
  }
}

/**
 * Gives a guest the address `PREFIX::2` and the other `addresses`, gives its container `PREFIX:c::2`, and adds their
 * routes to SERVICE6.
 */
export async function giveIpv6(
  host: FirewallHost,
  guest: FirewallGuest,
  container: { readonly within: readonly string[] },
  prefix: string,
  addresses: readonly string[] = [],
): Promise<void> {
  const ip = ({ within }: { readonly within: readonly string[] }, words: string) =>
    must([...within, 'ip', '-6', ...words.split(' ')])
  const link = `tap-int-${guest.name}`
  await ip(host.hypervisor, `address add ${prefix}::1/64 dev ${link} nodad`)
  // Without a link-local address the kernel sends no neighbour solicitation. Its own one comes only seconds after the
  // link is up: the kernel reports links once per second, and then looks for duplicates.
  await ip(host.hypervisor, `address add fe80::1/64 dev ${link} nodad`)
  await ip(host.hypervisor, `route add ${prefix}:c::/80 via ${prefix}::2`)
  for (const address of [`${prefix}::2`, ...addresses]) await ip(guest, `address add ${address}/64 dev eth0 nodad`)
  await ip(guest, `route add ${SERVICE6} via ${prefix}::1`)
  await ip(guest, `address add ${prefix}:c::1/80 dev ctr0 nodad`)
  await must([...guest.within, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'])
  await ip(container, `address add ${prefix}:c::2/80 dev eth0 nodad`)
  await ip(container, `route add default via ${prefix}:c::1`)
}

/** The outcome of a request: its status, `refused` if the connection was reset, or `no response`. */
export type Outcome = number | 'refused' | 'no response'

/** Sends one request by curl inside a namespace, with a timeout of two seconds. */
export async function curl(
  { within }: { readonly within: readonly string[] },
  args: readonly string[] = [],
  url = `http://${SERVICE}/latest/meta-data/instance-id`,
): Promise<Outcome> {
  const { status, stdout } = await run([
    ...within,
    'curl',
    '--silent',
    '--output',
    '/dev/null',
    '--write-out',
    '%{http_code}',
    '--globoff',
    '--max-time',
    '2',
    ...args,
    url,
  ])
  if (status === 0) return Number(stdout)
  return status === 7 || status === 56 ? 'refused' : 'no response'
}

/**
 * Sends bytes in pieces on one connection, 100 ms apart. With `isPaced` each further piece also waits for a response.
 * Returns everything that arrives until two seconds after the last piece.
 */
export async function sendPieces(
  { within }: { readonly within: readonly string[] },
  pieces: readonly string[],
  isPaced = false,
): Promise<string> {
  const code = `
    const socket = require('node:net').connect({ host: '${SERVICE}', port: 80, noDelay: true })
    socket.setEncoding('latin1').on('data', (text) => process.stdout.write(text)).on('error', () => {})
    const pieces = JSON.parse(process.argv[1])
    const next = () => {
      if (pieces.length === 0) setTimeout(() => process.exit(), 2000)
      else {
        socket.write(pieces.shift(), 'latin1')
        if (${String(isPaced)} && pieces.length > 0) socket.once('data', () => setTimeout(next, 100))
        else setTimeout(next, 100)
      }
    }
    socket.on('connect', next)
    setTimeout(() => process.exit(), 10000)`
  return (await must([...within, process.execPath, '-e', code, JSON.stringify(pieces)])).toString()
}

/** The program that sends TCP segments. */
export const RAW_TCP = new URL('../programs/raw-tcp.py', import.meta.url).pathname

/** Sends TCP segments inside a namespace by raw-tcp.py, whose header describes the arguments. Returns its output. */
export async function sendRaw(
  { within }: { readonly within: readonly string[] },
  ...args: readonly string[]
): Promise<string> {
  const rules =
    'table inet raw_tcp\ndelete table inet raw_tcp\ntable inet raw_tcp { chain output { type filter hook output priority 0; tcp flags & rst == rst drop; }; }'
  await must([...within, 'nft', '-f', '-'], { input: rules })
  return (await must([...within, 'python3', RAW_TCP, ...args])).toString().trim()
}
