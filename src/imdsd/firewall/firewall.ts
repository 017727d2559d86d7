/**
 * The daemon's side of the firewall: gives the firewall agent the document that the rules are made from, and knows
 * which rules are applied.
 *
 * The agent is a separate process, since changing rules needs a capability that a process that talks to guests must not
 * have. It asks for the document in a loop, and reports with each request which version the rules in the kernel are
 * made from. A version is the number of the view's change that it has: rules of version 7 are those of the view after
 * its seventh change, or later. So what the view gained at change 7 is confirmed by them, and by every later version.
 *
 * There is no document before the view is complete: rules for an empty view would keep every guest out while the daemon
 * starts. A document is built at most ten times a second, of parts that are made when a guest changes, in slices.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../../runtime/log-codes.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'
import { isOneAddress, overlap, splitPrefix } from '../../metadata/address.ts'
import type { Instance, NetworkRange } from '../../metadata/instance.ts'
import { LinkNames } from './link.ts'
import type { Packets } from './counters.ts'
import type { AgentReport } from './agent-report.ts'
import type { FirewallGuest, FirewallInterface, FirewallListener, FirewallDocument } from './document.ts'

/** An address that waits for rules: see Gain (imdsd/view/view.ts). */
interface Waiting {
  readonly range: NetworkRange
  readonly owner: string
  readonly sinceMs: number
}

/** What the firewall needs of the view. `changes`: the number of its changes until now. */
export interface FirewallView {
  get(id: string): { readonly instance: Instance } | undefined
  ids(): Iterable<string>
  readonly changes: number
  unconfirmed(): ReadonlyMap<string, Waiting>
}

export interface FirewallParts {
  /** The launch gate waits for the rules. */
  readonly required: boolean
  /** The rule for the names of links. */
  readonly link: string
  readonly view: FirewallView
  /** Monotonic, in milliseconds. */
  readonly now: () => number
  /** Distinguishes the versions of this process from those of another. */
  readonly startId: string
  /** Called for each report of rules of this process. `wasFresh`: so was the last one, within the last seconds. */
  readonly onConfirmed: (version: number, wasFresh: boolean) => void
  readonly log: Pick<Log, 'warn'>
}

/** The addresses on which the daemon listens, and the DSCP of packets with a hop limit. */
export interface FirewallListeners {
  readonly listeners: FirewallListener[]
  readonly operator: FirewallDocument['operator']
  readonly limitedDscp: number
}

/** A FirewallDocument as JSON. */
export interface FormattedDocument {
  readonly version: string
  readonly json: Buffer
}

/**
 * The state of the rules. `applied`: they are made from the current view, and were confirmed within the last seconds.
 * `ageSeconds`: time since that was so. `failed`: why the agent cannot apply newer rules.
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
/** How long a confirmation counts: the agent looks at the rules in each interval, and may be busy for a while. */
const FRESH_MS = 8_000
/** The shortest time between two documents. */
const BUILD_INTERVAL_MS = 100
/** For how long an address may wait for its rules before that is logged. The first ones are named. */
const MAX_WAIT_MS = 10_000
const MAX_NAMED = 10
/** How many guests are formatted at a time. */
const SLICE_GUESTS = 500
/** An agent that applies nothing is given many versions. The first of them tells how old its rules are. */
const MAX_GIVEN = 32

/** A guest of the document: its part as JSON, and the first version that has it. */
interface Part {
  readonly guest: FirewallGuest
  readonly json: string
  readonly version: number
}

/** A part that the kernel's rules have and the view has no more: since this version. */
interface Former {
  readonly guest: FirewallGuest
  readonly version: number
}

export class Firewall {
  readonly #parts: FirewallParts
  readonly #guests = new Map<string, Part>()
  readonly #former = new Map<string, Former>()
  readonly #links: LinkNames
  #listeners: FirewallListeners | undefined
  #isComplete = false
  #isStopped = false
  #newest: FormattedDocument | undefined
  #building: Promise<void> | undefined
  #builtAtMs = -Infinity
  #built = -1
  /** When the view first differed from the newest document; undefined while they are equal. */
  #changedAtMs: number | undefined
  /** The versions that the agent was given and has not confirmed, each with the time of its first change. */
  #given: { readonly version: number; readonly sinceMs: number }[] = []
  /** The version of the rules in the kernel, as was last reported; undefined: this process had none there yet. */
  #confirmed: number | undefined
  #confirmedAtMs: number
  /** The last report was of rules of this process. */
  #isInKernel = false
  #failed: string | undefined
  #packets: Packets | undefined
  readonly #waiting = new Set<() => void>()
  /** Looks whether addresses have waited for too long. */
  #look: NodeJS.Timeout | undefined

  constructor(parts: FirewallParts) {
    this.#parts = parts
    this.#links = new LinkNames(parts.link)
    this.#confirmedAtMs = this.#changedAtMs = parts.now()
    for (const id of parts.view.ids()) this.noteChange(id)
  }

  /** Sets where the daemon listens. */
  setListeners(listeners: FirewallListeners): void {
    this.#listeners = listeners
    this.#wake()
  }

  /** The view is complete: it was read from a snapshot, or a resync has completed. Wakes the agent's request. */
  noteComplete(): void {
    if (this.#isComplete) return
    this.#isComplete = true
    this.#wake()
  }

  /** The view has changed an instance. Wakes the agent's request if the document is another one by that. */
  noteChange(id: string): void {
    const { view, now } = this.#parts
    const instance = view.get(id)?.instance
    const guest = instance && firewallGuest(instance)
    const json = JSON.stringify(guest)
    const before = this.#guests.get(id)
    if (json === before?.json) return
    const version = view.changes
    if (before !== undefined) {
      for (const one of before.guest.interfaces) this.#links.remove(one)
      if (before.version <= (this.#confirmed ?? -1) && !this.#former.has(id))
        this.#former.set(id, { guest: before.guest, version })
    }
    if (guest === undefined) this.#guests.delete(id)
    else {
      for (const one of guest.interfaces) this.#links.add(one)
      this.#guests.set(id, { guest, json, version })
    }
    this.#changedAtMs ??= now()
    if (view.unconfirmed().size > 0) this.#look ??= setTimeout(() => this.#reportUnconfirmed(), MAX_WAIT_MS).unref()
    this.#wake()
  }

  /** Whether rules of this daemon are in the kernel: an unknown peer reaches no listener. */
  keepsUnknownOut(): boolean {
    return this.isFresh()
  }

  /** Whether the agent has seen rules of this daemon in the kernel within the last seconds. */
  isFresh(): boolean {
    return this.#isInKernel && this.#parts.now() - this.#confirmedAtMs < FRESH_MS
  }

  /** Answers all waiting requests. */
  stop(): void {
    this.#isStopped = true
    clearTimeout(this.#look)
    this.#wake()
  }

  /**
   * The document; undefined when there is none yet. With a report of the agent: the document once its version is not
   * the applied one. Waits for LONG_POLL_MS at most.
   */
  async next(report: AgentReport | undefined): Promise<FormattedDocument | undefined> {
    if (report !== undefined) this.#hear(report)
    for (const untilMs = this.#parts.now() + LONG_POLL_MS; ;) {
      await (this.#building ??= this.#build().finally(() => {
        this.#building = undefined
      }))
      const leftMs = untilMs - this.#parts.now()
      const isNew = this.#newest !== undefined && this.#newest.version !== report?.applied
      if (isNew || leftMs <= 0 || this.#isStopped) break
      await this.#change(leftMs)
    }
    return this.#newest
  }

  /** True if the rules enforce the hop limit of this instance's session tokens (contract D6). */
  limitsHops(instance: Instance): boolean {
    const networks = new Set(instance.interfaces.map(({ network }) => network))
    const isKept = ({ network, address }: FirewallListener) => isOneAddress(address) || !networks.has(network)
    return this.#listeners?.listeners.every(isKept) === true && this.#isApplied(instance)
  }

  /** Why the guest of this record cannot be started yet, or undefined: all of it is confirmed, and freshly. */
  problemOf(instance: Instance): string | undefined {
    if (!this.#parts.required) return undefined
    const fault = this.linkFault(instance)
    if (fault !== undefined) return fault
    const [unconfirmed] = this.unconfirmed(({ owner }) => owner === instance.id)
    if (unconfirmed === undefined && this.#isApplied(instance)) return undefined
    const silent = this.isFresh() ? undefined : 'no rules are confirmed'
    const causes = [this.#failed, unconfirmed ?? silent].filter((cause) => cause !== undefined)
    return ['the firewall has not admitted the guest yet', causes.join('; ')].filter((text) => text !== '').join(': ')
  }

  /**
   * Why the guest of this record can never be started, or undefined: the rule for links gives one of its links no valid
   * name.
   */
  linkFault({ interfaces }: Instance): string | undefined {
    if (!this.#parts.required) return undefined
    for (const one of interfaces) {
      const link = this.#links.nameOf(one)
      if (!link.ok) return `the firewall keeps interface ${one.id} out: ${link.faults.join('; ')}`
    }
    return undefined
  }

  /** The addresses that wait for rules, each as a sentence, of which `isWanted`. */
  *unconfirmed(isWanted: (one: Waiting) => boolean): Generator<string> {
    for (const [key, gain] of this.#parts.view.unconfirmed()) {
      if (!isWanted(gain)) continue
      const { range, owner } = gain
      const holder = this.#formerOwner(range)
      yield this.#confirmed === undefined
        ? `${key} of ${owner}: the rules of before the start may give it to another instance`
        : `${key} of ${owner}: ` +
          (holder === undefined ? 'its rules are not confirmed' : `the rules in the kernel still give it to ${holder}`)
    }
  }

  status(): FirewallStatus {
    const { required, now } = this.#parts
    const differsSinceMs = this.#given[0]?.sinceMs ?? this.#changedAtMs
    return {
      required,
      applied: this.isFresh() && differsSinceMs === undefined,
      ageSeconds: Math.round(now() - Math.min(this.#confirmedAtMs, differsSinceMs ?? Infinity)) / 1000,
      ...(this.#failed !== undefined && { failed: this.#failed }),
    }
  }

  /** The packets that the agent has last reported; undefined: it has reported none to this process. */
  packets(): Packets | undefined {
    return this.#packets
  }

  /** Whether the rules in the kernel are made from this instance as it is now, with all of its interfaces. */
  #isApplied({ id, interfaces }: Instance): boolean {
    const version = this.#guests.get(id)?.version ?? Infinity
    return this.isFresh() && version <= this.#confirmed! && interfaces.every((one) => this.#links.nameOf(one).ok)
  }

  /** The instance to which the rules in the kernel give a range that the view has given to another one. */
  #formerOwner({ network, range }: NetworkRange): string | undefined {
    for (const [id, { guest }] of this.#former)
      for (const one of guest.interfaces)
        if (one.network === network && rangesOfInterface(one).some((other) => overlap(other, range))) return id
    return undefined
  }

  #reportUnconfirmed(): void {
    const { view, now, log } = this.#parts
    this.#look = undefined
    const sinceMs = now() - MAX_WAIT_MS
    const waiting = [...this.unconfirmed((one) => one.sinceMs <= sinceMs)]
    if (waiting.length > 0)
      log.warn(
        { code: 'address-unconfirmed', addresses: waiting.slice(0, MAX_NAMED), waiting: waiting.length },
        'addresses wait for the rules of the firewall; nobody is served on them. Is imds-firewall running?',
      )
    else if (view.unconfirmed().size > 0) this.#look = setTimeout(() => this.#reportUnconfirmed(), MAX_WAIT_MS).unref()
  }

  #hear({ applied = '', failed, packets }: AgentReport): void {
    const { startId, now, onConfirmed, log } = this.#parts
    if (failed !== undefined && failed !== this.#failed)
      log.warn(
        { code: 'firewall-not-applied', failed },
        'the firewall cannot apply the rules; guests of new instances are kept out',
      )
    this.#failed = failed
    this.#packets = packets ?? this.#packets
    const wasFresh = this.isFresh()
    const [start, version] = applied.split('.')
    this.#isInKernel = start === startId && Number(version) <= this.#built
    if (!this.#isInKernel) return
    const confirmed = (this.#confirmed = Number(version))
    this.#confirmedAtMs = now()
    this.#given = this.#given.filter((one) => one.version > confirmed)
    for (const [id, former] of this.#former) if (former.version <= confirmed) this.#former.delete(id)
    onConfirmed(confirmed, wasFresh)
  }

  /** Builds a document if the view has changed since the newest one. */
  async #build(): Promise<void> {
    const { link, startId, view, now } = this.#parts
    if (this.#listeners === undefined || !this.#isComplete || this.#changedAtMs === undefined) return
    const waitMs = this.#builtAtMs + BUILD_INTERVAL_MS - now()
    if (waitMs > 0) await sleep(waitMs)
    this.#builtAtMs = now()
    this.#built = view.changes
    this.#given.push({ version: this.#built, sinceMs: this.#changedAtMs })
    if (this.#given.length > MAX_GIVEN) this.#given.splice(1, 1)
    this.#changedAtMs = undefined
    const version = `${startId}.${this.#built}`
    const guests = [...this.#guests.values()].map(({ json }) => json)
    const head = JSON.stringify({ version, link, ...this.#listeners, guests: [] } satisfies FirewallDocument)
    const chunks = [Buffer.from(head.slice(0, -']}'.length))]
    const budget = new TurnBudget()
    for (let at = 0; at < guests.length; at += SLICE_GUESTS) {
      const slice = guests.slice(at, at + SLICE_GUESTS).join(',')
      chunks.push(Buffer.from(at === 0 ? slice : `,${slice}`))
      await budget.spend(slice.length)
    }
    this.#newest = { version, json: Buffer.concat([...chunks, Buffer.from(']}')]) }
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

function rangesOfInterface({ ipv4Addresses, ipv6Addresses, ipv6Prefixes }: FirewallInterface): string[] {
  return [...ipv4Addresses, ...ipv6Addresses, ...ipv6Prefixes]
}

export function firewallGuest({ id, options, interfaces }: Instance): FirewallGuest {
  const plain = (address: string) => splitPrefix(address).address
  return {
    id,
    httpPutResponseHopLimit: options.httpPutResponseHopLimit,
    // one that has lost all of its addresses needs no link, which the later instance may have got as well
    interfaces: interfaces
      .map(({ id, network, macAddress, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => ({
        id,
        network,
        macAddress,
        ipv4Addresses: ipv4Addresses.map(plain),
        ipv6Addresses: ipv6Addresses.map(plain),
        ipv6Prefixes: [...ipv6Prefixes],
      }))
      .filter((one) => rangesOfInterface(one).length > 0),
  }
}
