/**
 * The daemon's side of the firewall: gives the firewall agent the document that the rules are made from, and knows
 * which rules are applied.
 *
 * The agent is a separate process, since changing rules needs a capability that a process that talks to guests must not
 * have. It asks for the document in a loop, and reports with each request which version its rules are made from. The
 * launch gate waits until the rules that were made from an instance's current record are applied.
 *
 * There is no document before the view is complete: rules for an empty view would keep every guest out while the daemon
 * starts.
 */
import type { Log } from '../../runtime/log-codes.ts'
import { isOneAddress, splitPrefix } from '../../metadata/address.ts'
import type { Instance } from '../../metadata/instance.ts'
import { linksOf, type Links } from './link.ts'
import type { Packets } from './counters.ts'
import type { AgentReport } from './agent-report.ts'
import type { FirewallGuest, FirewallListener, FirewallDocument } from './document.ts'

export interface FirewallParts {
  /** The launch gate waits for the rules. */
  readonly required: boolean
  /** The rule for the names of links. */
  readonly link: string
  readonly instances: () => Iterable<Instance>
  /** Monotonic, in milliseconds. */
  readonly now: () => number
  /** Distinguishes the versions of this process from those of another. */
  readonly startId: string
  /** Called when the agent reports for the first time that it has applied rules of this process. */
  readonly onFirstApplied: () => void
  readonly log: Pick<Log, 'warn'>
}

/** The addresses on which the daemon listens, and the DSCP of packets with a hop limit. */
export interface FirewallListeners {
  readonly listeners: FirewallListener[]
  readonly operator: FirewallDocument['operator']
  readonly limitedDscp: number
}

/**
 * The state of the rules. `applied`: they are made from the current view. `ageSeconds`: time since the agent last
 * reported that. `failed`: why the agent cannot apply newer rules.
 */
export interface FirewallStatus {
  readonly required: boolean
  readonly applied: boolean
  readonly ageSeconds: number
  readonly failed?: string
}

/**
 * If the view does not change, a request of the agent is answered after this time, in ms. So the agent checks its rules
 * at this interval.
 */
const LONG_POLL_MS = 3_000
/** After this time without a request, the agent is considered dead. */
const STALE_SECONDS = 30
/** The most versions that are kept, for an agent that is behind. */
const MAX_VERSIONS = 32

interface Version {
  readonly document: FirewallDocument
  readonly links: Links
  readonly instances: ReadonlyMap<string, Instance>
  readonly sinceMs: number
}

export class Firewall {
  readonly #parts: FirewallParts
  #listeners: FirewallListeners | undefined
  #isComplete = false
  #isStopped = false
  #count = 0
  /** When the view first differed from the newest version; undefined while they are equal. */
  #changedAtMs: number | undefined
  /** The versions that were given to the agent, the newest last. If one is applied, it is the first. */
  #versions: Version[] = []
  #applied: Version | undefined
  #wasApplied = false
  #failed: string | undefined
  #packets: Packets | undefined
  #heardAtMs: number
  readonly #waiting = new Set<() => void>()

  constructor(parts: FirewallParts) {
    this.#parts = parts
    this.#heardAtMs = this.#changedAtMs = parts.now()
  }

  /** Sets where the daemon listens. */
  setListeners(places: FirewallListeners): void {
    this.#listeners = places
    this.#wake()
  }

  /** The view is complete: it was read from a snapshot, or a resync has completed. Wakes the agent's request. */
  noteComplete(): void {
    if (this.#isComplete) return
    this.#isComplete = true
    this.#wake()
  }

  /** The view has changed. Wakes the agent's request. */
  noteChange(): void {
    this.#changedAtMs ??= this.#parts.now()
    this.#wake()
  }

  /** Whether rules of this daemon are in the kernel: an unknown peer reaches no listener. */
  keepsUnknownOut(): boolean {
    return this.#applied !== undefined
  }

  /** Answers all waiting requests. */
  stop(): void {
    this.#isStopped = true
    this.#wake()
  }

  /**
   * The document; undefined when there is none yet. With a report of the agent: the document once its version is not
   * the applied one. Waits for LONG_POLL_MS at most.
   */
  async next(report: AgentReport | undefined): Promise<FirewallDocument | undefined> {
    if (report !== undefined) this.#hear(report)
    for (const untilMs = this.#parts.now() + LONG_POLL_MS; !this.#isStopped;) {
      const document = this.#newest()
      const leftMs = untilMs - this.#parts.now()
      if ((document !== undefined && document.version !== report?.applied) || leftMs <= 0) break
      await this.#change(leftMs)
    }
    if (report !== undefined) this.#heardAtMs = this.#parts.now()
    return this.#newest()
  }

  /** True if the applied rules were made from this record and include all of its interfaces. */
  isApplied(instance: Instance): boolean {
    const { instances, links } = this.#applied ?? {}
    return instances?.get(instance.id) === instance && instance.interfaces.every((one) => links?.(one).ok === true)
  }

  /** True if the rules enforce the hop limit of this record's session tokens (contract D6). */
  limitsHops(instance: Instance): boolean {
    const networks = new Set(instance.interfaces.map(({ network }) => network))
    const isKept =
      this.#listeners?.listeners.every(({ network, address }) => isOneAddress(address) || !networks.has(network)) ===
      true
    return isKept && this.isApplied(instance) && this.status().ageSeconds <= STALE_SECONDS
  }

  /** Why the guest of this record cannot be started yet, or undefined. */
  problemOf(instance: Instance): string | undefined {
    if (!this.#parts.required) return undefined
    const fault = this.linkFault(instance)
    if (fault !== undefined) return fault
    if (this.isApplied(instance)) return undefined
    return `the firewall has not admitted the guest yet${this.#failed === undefined ? '' : `: ${this.#failed}`}`
  }

  /**
   * Why the guest of this record can never be started, or undefined: the rule for links gives one of its links no valid
   * name.
   */
  linkFault(instance: Instance): string | undefined {
    if (!this.#parts.required) return undefined
    const links = this.#versions.at(-1)?.links ?? linksOf(this.#parts.link, instance.interfaces)
    for (const one of instance.interfaces) {
      const link = links(one)
      if (!link.ok) return `the firewall keeps interface ${one.id} out: ${link.faults.join('; ')}`
    }
    return undefined
  }

  status(): FirewallStatus {
    const next = this.#versions[this.#applied === undefined ? 0 : 1]
    const staleSinceMs = next?.sinceMs ?? this.#changedAtMs
    const ageMs = this.#parts.now() - Math.min(this.#heardAtMs, staleSinceMs ?? Infinity)
    const isApplied = this.#applied !== undefined && staleSinceMs === undefined
    return {
      required: this.#parts.required,
      applied: isApplied,
      ageSeconds: Math.round(ageMs) / 1000,
      ...(this.#failed !== undefined && { failed: this.#failed }),
    }
  }

  /** The packets that the agent has last reported; undefined: it has reported none to this process. */
  packets(): Packets | undefined {
    return this.#packets
  }

  #hear({ applied, failed, packets }: AgentReport): void {
    if (failed !== undefined && failed !== this.#failed)
      this.#parts.log.warn(
        { code: 'firewall-not-applied', failed },
        'the firewall cannot apply the rules; guests of new instances are kept out',
      )
    this.#failed = failed
    this.#packets = packets ?? this.#packets
    this.#heardAtMs = this.#parts.now()
    const at = this.#versions.findIndex(({ document }) => document.version === applied)
    if (at === -1 && this.#applied !== undefined) {
      this.#versions = []
      this.#changedAtMs ??= this.#parts.now()
    }
    this.#applied = this.#versions[at]
    if (at > 0) this.#versions.splice(0, at)
    if (this.#applied === undefined || this.#wasApplied) return
    this.#wasApplied = true
    this.#parts.onFirstApplied()
  }

  #newest(): FirewallDocument | undefined {
    if (this.#listeners === undefined || !this.#isComplete) return undefined
    if (this.#changedAtMs !== undefined) {
      const instances = new Map([...this.#parts.instances()].map((instance) => [instance.id, instance]))
      const { link, startId } = this.#parts
      const document = {
        version: `${startId}.${++this.#count}`,
        link,
        ...this.#listeners,
        guests: [...instances.values()].map(firewallGuest),
      }
      const links = linksOf(
        link,
        [...instances.values()].flatMap(({ interfaces }) => interfaces),
      )
      this.#versions.push({ document, links, instances, sinceMs: this.#changedAtMs })
      // Keep the applied version: its rules still admit its guests.
      if (this.#versions.length > MAX_VERSIONS) this.#versions.splice(this.#applied === this.#versions[0] ? 1 : 0, 1)
      this.#changedAtMs = undefined
    }
    return this.#versions.at(-1)?.document
  }

  #change(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer)
        this.#waiting.delete(end)
        resolve()
      }
      const timer = setTimeout(end, timeoutMs)
      this.#waiting.add(end)
    })
  }

  #wake(): void {
    for (const end of [...this.#waiting]) end()
  }
}

export function firewallGuest({ id, revision, options, interfaces }: Instance): FirewallGuest {
  const plain = (address: string) => splitPrefix(address).address
  return {
    id,
    revision,
    httpPutResponseHopLimit: options.httpPutResponseHopLimit,
    interfaces: interfaces.map(({ id, network, macAddress, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => ({
      id,
      network,
      macAddress,
      ipv4Addresses: ipv4Addresses.map(plain),
      ipv6Addresses: ipv6Addresses.map(plain),
      ipv6Prefixes: [...ipv6Prefixes],
    })),
  }
}
