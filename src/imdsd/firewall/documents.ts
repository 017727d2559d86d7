/**
 * The documents that the firewall agent makes the rules from. The version of one is the number of the view's changes that
 * it has: that of version 7 is the view after its seventh change.
 *
 * There is no document before the view is complete: rules for an empty view would keep every guest out while the daemon
 * starts. One is built at most ten times a second, of parts that are made when a guest changes, in slices.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { TurnBudget } from '../../limits/turn-budget.ts'
import { splitPrefix } from '../../metadata/address.ts'
import type { Instance } from '../../metadata/instance.ts'
import { LinkNames, type LinkName } from './link.ts'
import type { FirewallGuest, FirewallInterface, FirewallListener, FirewallDocument } from './document.ts'

/** What the documents are made of. `changes`: the number of the view's changes until now. */
export interface DocumentView {
  get(id: string): { readonly instance: Instance } | undefined
  ids(): Iterable<string>
  readonly changes: number
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

export interface DocumentParts {
  /** The rule for the names of links. */
  readonly link: string
  readonly view: DocumentView
  /** Monotonic, in milliseconds. */
  readonly now: () => number
  /** Distinguishes the versions of this process from those of another. */
  readonly startId: string
}

/** A guest of the document: its part as JSON, and the first version that has it. */
interface GuestPart {
  readonly guest: FirewallGuest
  readonly json: string
  readonly version: number
}

/**
 * If the view does not change, a request of the agent is answered after this time, in ms. So the agent checks its rules
 * at this interval.
 */
const LONG_POLL_MS = 3_000
/** The shortest time between two documents. */
const BUILD_INTERVAL_MS = 100
/** How many guests are formatted at a time. */
const SLICE_GUESTS = 500
/** An agent that applies nothing is given many versions. The first of them tells how old its rules are. */
const MAX_UNAPPLIED = 32

export class FirewallDocuments {
  readonly #parts: DocumentParts
  readonly #guests = new Map<string, GuestPart>()
  readonly #links: LinkNames
  #listeners: FirewallListeners | undefined
  #isComplete = false
  #isStopped = false
  #newest: FormattedDocument | undefined
  readonly #waiting = new Set<() => void>()
  #building: Promise<void> | undefined
  #builtAtMs = -Infinity
  /** The version of the newest document. */
  #built = -1
  /** The versions that the kernel lacks, each with the time of its first change. The last may be still to be built. */
  #unapplied: { readonly version: number; readonly sinceMs: number }[]

  constructor(parts: DocumentParts) {
    this.#parts = parts
    this.#links = new LinkNames(parts.link)
    this.#unapplied = [{ version: Infinity, sinceMs: parts.now() }]
    for (const id of parts.view.ids()) this.note(id)
  }

  /** Sets where the daemon listens. */
  setListeners(listeners: FirewallListeners): void {
    this.#listeners = listeners
    this.#wake()
  }

  /** The view is complete: it was read from the journal, or a resync has completed. */
  noteComplete(): void {
    this.#isComplete = true
    this.#wake()
  }

  /** Answers all requests that wait. */
  stop(): void {
    this.#isStopped = true
    this.#wake()
  }

  /**
   * The newest document, once its version is not the one that is applied; undefined: there is none yet. Waits for
   * LONG_POLL_MS at most.
   */
  async next(applied: string | undefined): Promise<FormattedDocument | undefined> {
    for (const untilMs = this.#parts.now() + LONG_POLL_MS; ;) {
      await (this.#building ??= this.#build().finally(() => {
        this.#building = undefined
      }))
      const leftMs = untilMs - this.#parts.now()
      const isNew = this.#newest !== undefined && this.#newest.version !== applied
      if (isNew || leftMs <= 0 || this.#isStopped) return this.#newest
      await this.#change(leftMs)
    }
  }

  /** The view has changed an instance. */
  note(id: string): void {
    const { view, now } = this.#parts
    const instance = view.get(id)?.instance
    const guest = instance && firewallGuest(instance)
    const json = JSON.stringify(guest)
    const before = this.#guests.get(id)
    if (json === before?.json) return
    for (const nic of before?.guest.interfaces ?? []) this.#links.remove(nic, view.changes)
    for (const nic of guest?.interfaces ?? []) this.#links.add(nic, view.changes)
    if (guest === undefined) this.#guests.delete(id)
    else this.#guests.set(id, { guest, json, version: view.changes })
    if (!this.#isChanged) this.#unapplied.push({ version: Infinity, sinceMs: now() })
    this.#wake()
  }

  /** The rules in the kernel are of this version. */
  confirm(version: number): void {
    this.#unapplied = this.#unapplied.filter((change) => change.version > version)
  }

  /** Since when the view, or a document that the agent was given, differs from the rules; undefined: they are equal. */
  get differsSinceMs(): number | undefined {
    return this.#unapplied[0]?.sinceMs
  }

  /** The number in a version of this process, if there is such a document. */
  numberOf(version: string): number | undefined {
    const [start, number] = version.split('.')
    return start === this.#parts.startId && Number(number) <= this.#built ? Number(number) : undefined
  }

  /** The first version that has an instance as it is now, with its links; Infinity: there is none. */
  versionOf(id: string): number {
    const { guest, version } = this.#guests.get(id) ?? { guest: undefined, version: Infinity }
    return Math.max(version, ...(guest?.interfaces ?? []).map((nic) => this.#links.versionOf(nic)))
  }

  linkOf(nic: FirewallInterface | Instance['interfaces'][number]): LinkName {
    return this.#links.nameOf(nic)
  }

  /** Builds a document if the view has changed since the newest one. */
  async #build(): Promise<void> {
    const { link, startId, view, now } = this.#parts
    if (this.#listeners === undefined || !this.#isComplete || !this.#isChanged) return
    const waitMs = this.#builtAtMs + BUILD_INTERVAL_MS - now()
    if (waitMs > 0) await sleep(waitMs)
    this.#builtAtMs = now()
    this.#built = view.changes
    const { sinceMs } = this.#unapplied.pop()!
    this.#unapplied.push({ version: this.#built, sinceMs })
    if (this.#unapplied.length > MAX_UNAPPLIED) this.#unapplied.splice(1, 1)
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

  /** The view has changed since the newest document. */
  get #isChanged(): boolean {
    return this.#unapplied.at(-1)?.version === Infinity
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

export function firewallGuest({ id, options, interfaces }: Instance): FirewallGuest {
  const plain = (address: string) => splitPrefix(address).address
  return {
    id,
    httpPutResponseHopLimit: options.httpPutResponseHopLimit,
    // an interface that has lost all of its addresses needs no link, which the later instance may have got as well
    interfaces: interfaces
      .map(({ id, network, macAddress, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => ({
        id,
        network,
        macAddress,
        ipv4Addresses: ipv4Addresses.map(plain),
        ipv6Addresses: ipv6Addresses.map(plain),
        ipv6Prefixes: [...ipv6Prefixes],
      }))
      .filter((nic) => nic.ipv4Addresses.length + nic.ipv6Addresses.length + nic.ipv6Prefixes.length > 0),
  }
}
