/**
 * The daemon's side of the firewall: gives the firewall agent the document that the rules are made from (documents.ts),
 * and knows which rules are applied.
 *
 * The agent is a separate process, since changing rules needs a capability that a process that talks to guests must not
 * have. It asks for the document in a loop, and reports with each request which version the rules in the kernel are
 * made from. What the view gained at its change 7 is confirmed by rules of version 7, and of every later one. Rules are
 * fresh for some seconds after such a report, and applied while they are fresh and of the newest version.
 */
import type { Instance, NetworkRange } from '../../metadata/instance.ts'
import type { Packets } from './counters.ts'
import type { AgentReport } from './agent-report.ts'
import { FirewallDocuments, type DocumentParts, type DocumentView, type FormattedDocument } from './documents.ts'

/** An address that waits for rules: see Gain (imdsd/view/view.ts). */
interface Waiting {
  readonly range: NetworkRange
  readonly owner: string
}

export interface FirewallView extends DocumentView {
  unconfirmed(): ReadonlyMap<string, Waiting>
}

export interface FirewallParts extends DocumentParts {
  /** The launch gate waits for the rules. */
  readonly required: boolean
  readonly view: FirewallView
  /** Called for each report of rules of this process. `wasFresh`: so was the last one, within the last seconds. */
  readonly onConfirmed: (version: number, wasFresh: boolean) => void
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

/** How long a confirmation counts: the agent looks at the rules in each interval, and may be busy for a while. */
const FRESH_MS = 8_000

export class Firewall {
  readonly #parts: FirewallParts
  readonly documents: FirewallDocuments
  /** The version of the rules in the kernel, as was last reported; undefined: this process had none there yet. */
  #confirmed: number | undefined
  #confirmedAtMs: number
  /** The last report was of rules of this process. */
  #isInKernel = false
  #failed: string | undefined
  #packets: Packets | undefined

  constructor(parts: FirewallParts) {
    this.#parts = parts
    this.documents = new FirewallDocuments(parts)
    this.#confirmedAtMs = parts.now()
  }

  /** Whether the agent has seen rules of this daemon in the kernel within the last seconds. */
  isFresh(): boolean {
    return this.#isInKernel && this.#parts.now() - this.#confirmedAtMs < FRESH_MS
  }

  stop(): void {
    this.documents.stop()
  }

  /** Answers a request of the agent, with its report, or of an operator: see FirewallDocuments.next. */
  next(report: AgentReport | undefined): Promise<FormattedDocument | undefined> {
    if (report !== undefined) this.#hear(report)
    return this.documents.next(report?.applied)
  }

  /** True if the rules enforce the hop limit of this instance's session tokens (contract D6). */
  limitsHops(instance: Instance): boolean {
    return this.#parts.required && this.#isApplied(instance)
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
    for (const nic of interfaces) {
      const link = this.documents.linkOf(nic)
      if (!link.ok) return `the firewall keeps interface ${nic.id} out: ${link.faults.join('; ')}`
    }
    return undefined
  }

  /** The addresses that wait for rules, each as a sentence, of which `isWanted`. */
  *unconfirmed(isWanted: (gain: Waiting) => boolean): Generator<string> {
    for (const [key, gain] of this.#parts.view.unconfirmed()) {
      if (isWanted(gain)) yield `${key} of ${gain.owner}: the rules in the kernel may still give it to another instance`
    }
  }

  status(): FirewallStatus {
    const { required, now } = this.#parts
    const { differsSinceMs } = this.documents
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
    const version = this.documents.versionOf(id)
    return this.isFresh() && version <= this.#confirmed! && interfaces.every((nic) => this.documents.linkOf(nic).ok)
  }

  #hear({ applied = '', failed, packets }: AgentReport): void {
    const { now, onConfirmed } = this.#parts
    this.#failed = failed
    this.#packets = packets ?? this.#packets
    const wasFresh = this.isFresh()
    const confirmed = this.documents.numberOf(applied)
    this.#isInKernel = confirmed !== undefined
    if (confirmed === undefined) return
    this.#confirmed = confirmed
    this.#confirmedAtMs = now()
    this.documents.confirm(confirmed)
    onConfirmed(confirmed, wasFresh)
  }
}
