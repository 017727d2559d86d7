/**
 * A hypervisor and its guests, as network namespaces of this machine.
 *
 * The hypervisor has the address 169.254.169.254. Each guest has its own link to the hypervisor and reaches nothing
 * else. The network of this machine does not change, and a namespace ends with the child process that keeps it alive.
 */
import { execFileSync } from 'node:child_process'
import type { Answer } from '../programs/daemon.ts'
import { must, startChild, type Child } from '../programs/processes.ts'

/** The address of the service. */
export const SERVICE = '169.254.169.254'

/**
 * The link of a guest. The guest's end has `address` (with its prefix length), `macAddress` and the name
 * `guestDevice` (default: eth0). The hypervisor's end has the address `gateway` and the name `device`.
 */
export interface Link {
  readonly address: string
  readonly gateway: string
  readonly macAddress: string
  readonly device?: string
  readonly guestDevice?: string
}

/**
 * A request of a guest. `path` may be any request target. The Host header is the service's address unless `headers` has
 * another.
 */
export interface Ask {
  readonly path: string
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
}

/** A guest. `within` is a command that runs another one inside the guest; it ends with the test at the latest. */
export interface Guest {
  readonly within: readonly string[]
  /** Sends one request to port 80 of the service on a new connection. Rejects if no response arrives. */
  ask(ask: Ask): Promise<Answer>
  /**
   * Adds a container to the guest, one hop behind it. The guest routes its packets and masquerades them, as Docker
   * does.
   */
  addContainer(): Promise<{ readonly within: readonly string[] }>
}

/**
 * A hypervisor. `within` is a command that runs another one inside, as for a guest. `pid` is a process in its
 * namespace.
 */
export interface Hypervisor {
  readonly within: readonly string[]
  readonly pid: number
  addGuest(link: Link): Promise<Guest>
  /** Moves the hypervisor's end of a guest's link to another hypervisor, as at the end of a live migration. */
  handOver(link: Link & { readonly device: string }, to: Hypervisor): Promise<void>
  /** Forwards `port` of 127.0.0.1 in this namespace to a unix socket of the test. */
  forward(port: number, socketPath: string): Promise<void>
  /** Ends the hypervisor and its guests. */
  remove(): Promise<void>
}

/** For `skip` of a test: the reason why this machine cannot create namespaces, or false if it can. */
export function withoutNamespaces(): string | false {
  if (process.getuid?.() !== 0) return 'network namespaces need root'
  try {
    execFileSync(
      'unshare',
      ['--net', '--mount', '--uts', '--pid', '--fork', 'setpriv', '--pdeathsig', 'KILL', 'ip', 'link'],
      { stdio: 'ignore' },
    )
    return false
  } catch {
    return 'network namespaces need unshare, setpriv, ip and CAP_SYS_ADMIN'
  }
}

/** Makes a hypervisor without guests. */
export async function makeHypervisor(): Promise<Hypervisor> {
  const children: Child[] = []
  const start = async (command: readonly string[]) => {
    const child = await startChild(command)
    children.push(child)
    return child
  }
  const makeNamespace = async () => {
    const { pid } = await start(['unshare', '--net', 'sh', '-c', 'ip link set lo up && echo up && exec cat'])
    const within = ['nsenter', `--net=/proc/${pid}/ns/net`, 'setpriv', '--pdeathsig', 'KILL']
    const ip = (words: string) => must([...within, 'ip', ...words.split(' ')])
    return { pid, within, ip }
  }
  const here = await makeNamespace()
  await here.ip(`address add ${SERVICE}/32 dev lo`)
  let links = 0

  return {
    within: here.within,
    pid: here.pid,
    addGuest: async ({ address, gateway, macAddress, device = `guest${++links}`, guestDevice = 'eth0' }) => {
      const guest = await makeNamespace()
      await here.ip(`link add ${device} type veth peer name ${guestDevice} address ${macAddress} netns ${guest.pid}`)
      await here.ip(`address add ${gateway}/${address.replace(/^.*\//, '')} dev ${device}`)
      await here.ip(`link set ${device} up`)
      await guest.ip(`address add ${address} dev ${guestDevice}`)
      await guest.ip(`link set ${guestDevice} up`)
      await guest.ip(`route add ${SERVICE} via ${gateway}`)
      const addContainer = async () => {
        const container = await makeNamespace()
        await guest.ip(`link add ctr0 type veth peer name eth0 netns ${container.pid}`)
        await guest.ip('address add 172.17.0.1/30 dev ctr0')
        await guest.ip('link set ctr0 up')
        await container.ip('address add 172.17.0.2/30 dev eth0')
        await container.ip('link set eth0 up')
        await container.ip('route add default via 172.17.0.1')
        await must([...guest.within, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward'])
        await must([...guest.within, 'nft', '-f', '-'], {
          input:
            'table ip docker { chain postrouting { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/30 masquerade; }; }',
        })
        return { within: container.within }
      }
      let agent: Promise<Guest['ask']> | undefined // most guests use curl
      const ask: Guest['ask'] = async (request) => {
        agent ??= start([...guest.within, process.execPath, AGENT, SERVICE]).then(askThrough)
        return (await agent)(request)
      }
      return { within: guest.within, ask, addContainer }
    },
    handOver: async ({ address, gateway, device }, to) => {
      await here.ip(`link set ${device} netns ${to.pid}`)
      await must([...to.within, 'ip', 'address', 'add', `${gateway}/${address.replace(/^.*\//, '')}`, 'dev', device])
      await must([...to.within, 'ip', 'link', 'set', device, 'up'])
    },
    forward: async (port, socketPath) => {
      await start([...here.within, process.execPath, FORWARDER, String(port), socketPath])
    },
    remove: async () => {
      await Promise.all(children.map((child) => child.stop()))
    },
  }
}

const AGENT = new URL('../programs/guest-agent.ts', import.meta.url).pathname
const FORWARDER = new URL('../programs/forwarder.ts', import.meta.url).pathname

type Result =
  | { readonly status: number; readonly headers: Answer['headers']; readonly body: string }
  | { readonly error: string }

/** Sends requests through a guest-agent.ts, and assigns its responses to them. */
function askThrough(agent: Child): Guest['ask'] {
  let last = 0
  const waiting = new Map<number, (result: Result) => void>()
  const settle = (id: number, result: Result) => {
    waiting.get(id)?.(result)
    waiting.delete(id)
  }
  agent.onLine((line) => {
    const { id, result } = JSON.parse(line) as { id: number; result: Result }
    settle(id, result)
  })
  void agent.ended.then(() => {
    for (const id of waiting.keys()) settle(id, { error: 'the guest has ended' })
  })
  return (ask) =>
    new Promise((resolve, reject) => {
      const id = ++last
      waiting.set(id, (result) => {
        if ('error' in result) reject(new Error(`${ask.path}: ${result.error}`))
        else resolve({ status: result.status, headers: result.headers, body: Buffer.from(result.body, 'base64') })
      })
      agent.writeLine(JSON.stringify({ id, ask }))
    })
}
