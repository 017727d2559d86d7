/**
 * The kernel of a hypervisor and the firewall agent: which packets of which links reach the daemon at each moment, and by
 * which link a response leaves. It has the elements that the real rules have (imdsd/firewall/rules.ts).
 *
 * The agent does what the real one does: it asks the daemon for the document, applies it as a whole, looks whether the
 * kernel has it, and reports that with its next request. It may be slow, dead, or restarted while it applies; and
 * another program may remove its table.
 */
import type { FirewallDocument } from '../../src/imdsd/firewall/document.ts'
import { buildRules } from '../../src/imdsd/firewall/rules.ts'
import type { Life } from './hypervisor.ts'
import type { Time } from './time.ts'

/** What an agent does that cannot reach the daemon, or that has a failure. */
const RETRY_MS = 1_000
/** In quiet hours the agent looks only now and then, which costs the simulation little. */
const QUIET_LOOKS = 40
const QUIET_MS = 60_000
/** How soon the agent is back. */
const START_MS = 500

/** The listeners: by network, for IPv4 and IPv6. */
export const LISTENERS: Readonly<Record<string, readonly [string, string]>> = {
  default: ['169.254.169.254', 'fd00:ec2::254'],
  blue: ['169.254.169.253', 'fd00:ec2::253'],
}
export const PORT = 80

/** What a guest sends: by a link, from an address, to the listener of a network (`place`: NETWORK ADDRESS). */
export interface Packet {
  readonly link: string
  readonly macAddress: string
  readonly place: string
}

/** A connection of a guest. `mark`: what the kernel has given it at its first packet; undefined: there were no rules. */
export interface Connection extends Packet {
  readonly mark: string | undefined
}

/** The elements of a set or map of the rules. */
type Elements = ReadonlyMap<string, string>
const NOTHING: Elements = new Map()

export class Kernel {
  readonly #time: Time
  readonly #name: string
  /** The document that the rules are made from; undefined: there is no table, and every packet passes. */
  rules: FirewallDocument | undefined
  #sets: ReadonlyMap<string, Elements> = new Map()
  /** Each guest that the rules admit, with each of its places. */
  admitted: readonly { readonly id: string; readonly place: string }[] = []
  #openSinceMs = 0
  /** How long the agent takes at most. */
  slowMs = 0
  /** Counts the lives of the agent. What a former one was doing, it does not do any more. */
  #agent = 0
  #isAgentUp = true
  /** The life of the agent that applies a document now: it does nothing else, also if the daemon is started again. */
  #applying: number | undefined
  /** What the agent has applied in this life; undefined: nothing. */
  #applied: string | undefined
  #life: Life | undefined
  /** The last report that the kernel has the rules. */
  #reported: { readonly life: Life; readonly atMs: number } | undefined
  #looks = 0
  #isResting = false
  #troubledAtMs = 0

  constructor(name: string, time: Time) {
    this.#name = name
    this.#time = time
  }

  /** The daemon of a life starts. */
  serve(life: Life): void {
    this.#life = life
    this.#wake()
  }

  /** The power of the hypervisor is cut. */
  reboot(): void {
    this.#open()
    this.restartAgent(0)
  }

  /** Another program removes the table. */
  flush(): void {
    if (this.rules === undefined) return
    this.#open()
    this.touch()
  }

  #open(): void {
    this.rules = undefined
    this.admitted = []
    this.#openSinceMs = this.#time.nowMs
  }

  /** The agent ends at once, and starts again after a while. */
  restartAgent(downMs: number): void {
    this.#agent += 1
    this.#applied = undefined
    this.#isAgentUp = false
    const agent = this.#agent
    this.#time.later(downMs + START_MS, () => {
      if (this.#agent !== agent) return
      this.#isAgentUp = true
      this.#wake()
    })
  }

  /** Ends all faults. */
  calm(): void {
    this.slowMs = 0
    if (!this.#isAgentUp) this.restartAgent(0)
    this.touch()
  }

  /** Whether there has been no table for so long. */
  isOpenFor(ms: number): boolean {
    return this.rules === undefined && this.#time.nowMs - this.#openSinceMs > ms
  }

  /** Whether the agent has reported to this life, within so many ms, that the kernel has its rules. */
  hasReported(life: Life, withinMs: number): boolean {
    return this.#reported?.life === life && this.#time.nowMs - this.#reported.atMs <= withinMs
  }

  /** When its agent was last slow, dead, busy or resting. */
  get troubledAtMs(): number {
    const isBusy = this.slowMs > 0 || this.#applying === this.#agent
    if (!this.#isAgentUp || isBusy || this.#isResting) this.#troubledAtMs = this.#time.nowMs
    return this.#troubledAtMs
  }

  /** Passes the first packet of a connection to the daemon; undefined: it is reset. */
  accept(packet: Packet): Connection | undefined {
    const { link, macAddress, place } = packet
    const { listener, address, version } = endsOf(place)
    if (this.rules === undefined) return { ...packet, mark: undefined }
    const key = `"${link}" . ${macAddress} . ${address} . ${listener} . ${PORT}`
    if (!this.#elements(`guests${version}`).has(key)) return undefined
    return { ...packet, mark: this.#elements('marks').get(`"${link}" . ${macAddress}`) ?? '' }
  }

  /**
   * The links by which the rules let the response of a connection leave now, also when it is sent again: the routes of
   * the hypervisor may lead to any of them.
   */
  linksOf({ mark = 'no mark', place }: Connection): string[] {
    const { listener, address, version } = endsOf(place)
    const end = ` . ${mark} . ${listener} . ${address}`
    return [...this.#elements(`answers${version}`).keys()]
      .filter((key) => key.endsWith(end))
      .map((key) => key.slice(1, key.indexOf('" .')))
  }

  #elements(name: string): Elements {
    return this.#sets.get(name) ?? NOTHING
  }

  /** Something happens on this hypervisor: an agent that rests looks again. */
  touch(): void {
    this.#looks = 0
    if (this.#isResting) this.#wake()
  }

  #wake(): void {
    this.#agentLoop(this.#agent, this.#life)
  }

  /** Reports, waits for a document, and applies it; again and again. */
  #agentLoop(agent: number, life: Life | undefined): void {
    const time = this.#time
    const isIt = () => this.#agent === agent && this.#life === life && this.#isAgentUp
    this.#isResting = false
    if (life === undefined || !isIt() || this.#applying === agent) return
    const turn = {}
    this.#turn = turn
    const again = (delayMs: number) => {
      time.later(delayMs, () => {
        if (isIt() && this.#turn === turn) this.#agentLoop(agent, life)
      })
    }
    if (!life.isReady || !life.isAlive) {
      again(RETRY_MS / 10)
      return
    }
    const isWhole = this.rules !== undefined && this.rules.version === this.#applied
    const report = { applied: isWhole ? this.#applied : undefined, failed: undefined, packets: undefined }
    const answered = time.as(life, () => life.storeSide.firewall.next(report))
    if (report.applied !== undefined) this.#reported = { life, atMs: time.nowMs }
    else if (life.storeSide.firewall.status().applied)
      time.break(`a report that the rules are gone counts at once: ${this.#name} says that they are applied`)
    void answered.then((document) => {
      if (!isIt() || this.#turn !== turn) return
      const parsed = document && (JSON.parse(document.json.toString()) as FirewallDocument)
      if (parsed !== undefined) this.givenBy = life
      if (parsed === undefined || (isWhole && parsed.version === this.#applied)) {
        this.#looks += 1
        this.#isResting = this.#looks > QUIET_LOOKS
        again(this.#isResting ? QUIET_MS : 1)
        return
      }
      this.#looks = 0
      this.#applying = agent
      const doneMs = this.slowMs > 0 ? time.dice.below(this.slowMs) : time.latencyMs()
      const kernelMs = doneMs * (0.1 + time.dice.below(9) / 10)
      time.later(kernelMs, () => {
        if (this.#agent !== agent) return
        this.rules = parsed
        this.#sets = buildRules(parsed).sets
        this.admitted = parsed.guests.flatMap(({ id, interfaces }) =>
          interfaces.flatMap(({ network, ipv4Addresses, ipv6Addresses }) =>
            [...ipv4Addresses, ...ipv6Addresses].map((address) => ({ id, place: `${network} ${address}` })),
          ),
        )
        time.note(`${this.#name}: the kernel has the rules of ${parsed.version}`)
      })
      time.later(doneMs, () => {
        if (this.#agent !== agent) return
        this.#applied = parsed.version
        this.#applying = undefined
        this.#wake()
      })
    })
  }

  /** The life of the daemon that has given a document last. */
  givenBy: Life | undefined

  /** The turn of the loop that is under way. */
  #turn: object | undefined
}

/** The ends of a connection: the listener's address, and the guest's with its version of IP. */
function endsOf(place: string): { listener: string; address: string; version: 4 | 6 } {
  const [network, address] = place.split(' ') as [string, string]
  const [ipv4, ipv6] = LISTENERS[network]!
  return address.includes(':') ? { listener: ipv6, address, version: 6 } : { listener: ipv4, address, version: 4 }
}
