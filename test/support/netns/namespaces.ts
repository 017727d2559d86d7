/**
 * A hypervisor and its guests, as network namespaces of this machine.
 *
 * The hypervisor has 169.254.169.254. Each guest has its own link to it and its own address, and reaches nothing else. Namespaces have no names: a
 * process keeps each alive, and the network of the machine does not change.
 */
import { execFileSync } from 'node:child_process'
import type { Answer } from '../programs/daemon.ts'
import { must, startHeld, type Held } from '../programs/processes.ts'

/** The address of the service. */
export const SERVICE = '169.254.169.254'

/** A guest's link. Its eth0 has `address` (with a prefix length) and `macAddress`; the hypervisor's end has `gateway`, and any name without `device`. */
export interface Wire { readonly address: string, readonly gateway: string, readonly macAddress: string, readonly device?: string }

/** A request. `path` may be any request target; the service's address is the Host unless `headers` say otherwise. */
export interface Ask { readonly path: string, readonly method?: string, readonly headers?: Readonly<Record<string, string>> }

/** A guest. `within` is a command that runs another one inside, at most as long as the test lives. */
export interface Guest {
  readonly within: readonly string[]
  /** Sends one request to port 80 of the service on a new connection. Rejects if no response arrives. */
  ask(ask: Ask): Promise<Answer>
  /** A container in the guest, one hop behind it. The guest routes its packets and masquerades them (as Docker does). */
  addContainer(): Promise<{ readonly within: readonly string[] }>
}

/** The hypervisor's side. `within` is as a guest's: for startDaemon. `pid`: the process that keeps its namespace. */
export interface Hypervisor {
  readonly within: readonly string[]
  readonly pid: number
  addGuest(wire: Wire): Promise<Guest>
  /** Moves the hypervisor's end of a guest's link to another hypervisor, as at the end of a live migration. */
  handOver(wire: Wire & { readonly device: string }, to: Hypervisor): Promise<void>
  /** Forwards `port` of 127.0.0.1 in this namespace to a unix socket: it shares its files with the test. */
  forward(port: number, socketPath: string): Promise<void>
  /** Removes everything. */
  remove(): Promise<void>
}

/** Why this machine cannot create namespaces, or false: the value for `skip` of a test. */
export function withoutNamespaces(): string | false {
  if (process.getuid?.() !== 0) return 'network namespaces need root'
  try {
    execFileSync('unshare', ['--net', '--mount', '--uts', '--pid', '--fork', 'setpriv', '--pdeathsig', 'KILL', 'ip', 'link'], { stdio: 'ignore' })
    return false
  } catch {
    return 'network namespaces need unshare, setpriv, ip and CAP_SYS_ADMIN'
  }
}

/** Makes a hypervisor without guests. */
export async function makeHypervisor(): Promise<Hypervisor> {
  const held: Held[] = []
  const hold = async (command: readonly string[]) => {
    const one = await startHeld(command)
    held.push(one)
    return one
  }
  const make = async () => {
    const { pid } = await hold(['unshare', '--net', 'sh', '-c', 'ip link set lo up && echo up && exec cat'])
    const within = ['nsenter', `--net=/proc/${String(pid)}/ns/net`, 'setpriv', '--pdeathsig', 'KILL']
    const ip = (words: string) => must([...within, 'ip', ...words.split(' ')])
    return { pid, within, ip }
  }
  const here = await make()
  await here.ip(`address add ${SERVICE}/32 dev lo`)
  let wires = 0

  return {
    within: here.within, pid: here.pid,
    addGuest: async ({ address, gateway, macAddress, device = `guest${String(++wires)}` }) => {
      const guest = await make()
      await here.ip(`link add ${device} type veth peer name eth0 address ${macAddress} netns ${String(guest.pid)}`)
      await here.ip(`address add ${gateway}/${address.replace(/^.*\//, '')} dev ${device}`)
      await here.ip(`link set ${device} up`)
      await guest.ip(`address add ${address} dev eth0`)
      await guest.ip('link set eth0 up')
      await guest.ip(`route add ${SERVICE} via ${gateway}`)
      const addContainer = async () => {
        const container = await make()
        await guest.ip(`link add ctr0 type veth peer name eth0 netns ${String(container.pid)}`)
        await guest.ip('address add 172.17.0.1/30 dev ctr0')
        await guest.ip('link set ctr0 up')
        await container.ip('address add 172.17.0.2/30 dev eth0')
        await container.ip('link set eth0 up')
        await container.ip('route add default via 172.17.0.1')
        await must([...guest.within, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward'])
        await must([...guest.within, 'nft', '-f', '-'], { input: 'table ip docker { chain postrouting { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/30 masquerade; }; }' })
        return { within: container.within }
      }
      return { within: guest.within, ask: askThrough(await hold([...guest.within, process.execPath, AGENT, SERVICE])), addContainer }
    },
    handOver: async ({ address, gateway, device }, to) => {
      await here.ip(`link set ${device} netns ${String(to.pid)}`)
      await must([...to.within, 'ip', 'address', 'add', `${gateway}/${address.replace(/^.*\//, '')}`, 'dev', device])
      await must([...to.within, 'ip', 'link', 'set', device, 'up'])
    },
    forward: async (port, socketPath) => {
      await hold([...here.within, process.execPath, FORWARDER, String(port), socketPath])
    },
    remove: async () => {
      await Promise.all(held.map((one) => one.release()))
    },
  }
}

const AGENT = new URL('../programs/guest-agent.ts', import.meta.url).pathname
const FORWARDER = new URL('../programs/forwarder.ts', import.meta.url).pathname

/** Sends requests through an agent, and matches its responses to them. */
function askThrough(agent: Held): Guest['ask'] {
  let last = 0
  const waiting = new Map<number, (said: { status: number, headers: Answer['headers'], body: string } | { error: string }) => void>()
  const settle = (id: number, said: Parameters<NonNullable<ReturnType<typeof waiting.get>>>[0]) => {
    waiting.get(id)?.(said)
    waiting.delete(id)
  }
  agent.listen((line) => {
    const { id, said } = JSON.parse(line) as { id: number, said: Parameters<typeof settle>[1] }
    settle(id, said)
  })
  void agent.ended.then(() => { for (const id of waiting.keys()) settle(id, { error: 'the guest is gone' }) })
  return (ask) => new Promise((resolve, reject) => {
    const id = ++last
    waiting.set(id, (said) => {
      if ('error' in said) reject(new Error(`${ask.path}: ${said.error}`))
      else resolve({ status: said.status, headers: said.headers, body: Buffer.from(said.body, 'base64') })
    })
    agent.tell(JSON.stringify({ id, ask }))
  })
}
