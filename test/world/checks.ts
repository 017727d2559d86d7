/**
 * The promises, checked after every step.
 *
 * - A view shows of each instance only states that the store had, and never an earlier one than before, in any life of
 *   the daemon. Absence is no removal.
 * - A guest that was launched is answered at once, and with its own values, until the control plane stops it.
 * - An address has one owner, who claimed it last, also after the store has lost something; its data is served once rules
 *   are confirmed that give it to no other. A packet that the kernel accepts gets no data of another (world.ts).
 * - What was sealed or removed is not served again without a later publish.
 * - A confirmation of rules counts for seconds; while the agent is well, what was gained is soon confirmed.
 * - A daemon that starts again serves what the one before served, unless its disk failed or its clock is wrong.
 * - A daemon that says that its view is up to date has read everything that the store had then.
 * - A daemon that is connected has every change after a minute.
 * - A request that waits for a change is answered soon after the change.
 * - A report that was accepted stays (report-checks.ts).
 * - Files, timers and held requests stay within their bounds.
 * - When everything is well and quiet, every view is what the store has.
 */
import { rangesOf, type NetworkRange } from '../../src/metadata/instance.ts'
import { IDS, NAMES, PLACES, type Wanted } from './control-plane.ts'
import { MAX_AGE_MS, type Hypervisor, type Life } from './hypervisor.ts'
import { ReportChecks } from './report-checks.ts'
import type { Entry } from './region.ts'
import type { SimulatedSource, SimulatedStore, Version } from './store.ts'
import type { Time } from './time.ts'

/** How long a change may take from the store to a view that hears of it. The longest latencies add up to it. */
const DELAY_MS = 15_000
/** How soon a daemon that is connected has a change. */
const PACE_MS = 60_000
/** A disk that failed has got over it after this time, and after another rewrite. */
const RECOVERY_MS = 60_000
const MAX_FILES = 40
const MAX_FILE_BYTES = 12 * 1024 * 1024
const MAX_TIMERS = 200
/** How long a confirmation of rules counts. */
const FRESH_MS = 8_000
/** How soon rules are confirmed while the agent and the disk are well. */
const CONFIRM_MS = 60_000

/** A guest that runs on a hypervisor, at a place (`NETWORK ADDRESS`). */
export interface Machine {
  readonly id: string
  readonly hypervisor: string
  readonly place: string
  readonly link: string
  readonly macAddress: string
}

/** What the checks know of a hypervisor. */
class Known {
  /** Id -> the position in the history of the store that the view has reached. */
  readonly reached = new Map<string, number>()
  /** Id -> the last publish or removal of it that the view has followed. */
  readonly acts = new Map<string, number>()
  /** Place -> the last owner that the view gave it to, with the publish that it had then: earlier claims are lost. */
  readonly owners = new Map<string, { readonly id: string; readonly act: number }>()
  /** Place -> the publish of an owner that its files may still know. */
  readonly former = new Map<string, number>()
  readonly served = new Set<string>()
  checked: Life | undefined
  /** The next life must serve the same. */
  isSound = true
  /** The times of its last two comparisons, by its clock: its journal has one of them. */
  writtenAtMs: readonly number[] = []
  isTroubled = false
  /** Its files are older than the view, and it has said that it cannot delete them. */
  isStale = false
  hasResynced = false
  /** At its last comparison the store was behind, also one of an earlier life. */
  saysBehind = false
  /** The latest order that a life had seen at the last look. */
  latest: { readonly life: Life; readonly order: number } | undefined
  /** When its view was last compared with the store. */
  comparedAtMs = 0

  /** When its files were lost. */
  forgotAtMs = 0

  /** Its files are lost, or are older than its view: it need know nothing of before. */
  forget(nowMs: number, mayKnow: boolean): void {
    this.forgotAtMs = nowMs
    this.acts.clear()
    if (!mayKnow) this.former.clear()
    else for (const [place, { act }] of this.owners) this.former.set(place, act)
    this.owners.clear()
  }
}

export class Checks {
  readonly #time: Time
  readonly #store: SimulatedStore
  readonly #known = new Map<string, Known>()
  /** By `HYPERVISOR NETWORK ADDRESS`. */
  readonly machines = new Map<string, Machine>()
  /** Guests that may still send, also after they were stopped: by `HYPERVISOR ID NETWORK ADDRESS`. */
  readonly senders = new Map<string, Machine>()
  /** The guest behind a link: by `HYPERVISOR LINK`. */
  readonly behind = new Map<string, string>()
  /** `HYPERVISOR ID` -> the order from which the guest may start there, as `imdsctl wait` asks. */
  readonly launches = new Map<string, number>()
  readonly reports: ReportChecks

  constructor(time: Time, store: SimulatedStore) {
    this.#time = time
    this.#store = store
    this.reports = new ReportChecks(store)
  }

  /** The instances whose guests run on a hypervisor. */
  idsOn(name: string): string[] {
    return [...this.machines.values()].filter(({ hypervisor }) => hypervisor === name).map(({ id }) => id)
  }

  /** Whether a hypervisor may know what it did then: its files were not lost since. */
  remembers(name: string, atMs: number): boolean {
    return this.#of(name).forgotAtMs <= atMs
  }

  // what happens

  /** The disk of a hypervisor begins to fail, or a file was damaged: the next life may serve nothing. */
  trouble({ name }: Hypervisor): void {
    this.#of(name).isTroubled = true
    this.#of(name).isSound = false
  }

  metric({ name, disk }: Hypervisor, metric: string | symbol, result: string): void {
    const known = this.#of(name)
    const isWell = !disk.isFailing && this.#time.nowMs - disk.troubledAtMs > RECOVERY_MS
    if (metric === 'journalRewrites' && result === 'written' && isWell) known.isTroubled = known.isStale = false
    if (metric === 'resyncs' && result === 'completed') known.hasResynced = true
  }

  log({ name }: Hypervisor, level: 'warn' | 'error', message: string): void {
    this.#time.note(`${name} logs: ${message}`)
    if (level === 'error') this.#time.break(`no request and no record fails unexpectedly: ${name} logs ${message}`)
  }

  /** The daemon of a hypervisor was killed, and perhaps its power was cut. */
  ended({ name, disk }: Hypervisor): void {
    const known = this.#of(name)
    this.reports.ended(name, known.isTroubled)
    known.isSound = !known.isTroubled && !disk.hasDamage
  }

  /** The machine of a hypervisor is off: its guests have ended. */
  rebooted(name: string): void {
    const known = this.#of(name)
    if (known.isStale) {
      // such a disk has kept nothing, and the mark of that was in memory
      known.reached.clear()
      known.forget(this.#time.nowMs, true)
      known.served.clear()
      this.#stopMachines(({ hypervisor }) => hypervisor === name)
    }
    this.#forgetSenders(name)
  }

  /** The store has lost something: reports may be gone. */
  storeLost(): void {
    this.reports.forget(() => true)
  }

  /** The guest of an instance is stopped; `of`: only on these hypervisors. */
  stop(id: string, of: readonly string[] = NAMES): void {
    for (const name of of) this.launches.delete(`${name} ${id}`)
    this.#stopMachines((machine) => machine.id === id && of.includes(machine.hypervisor))
  }

  /** The guest of an instance may start where the launch gate lets it. */
  launch(id: string, { hypervisors }: Wanted, at = hypervisors): void {
    const order = this.#store.primary.entries.get(id)?.order ?? 0
    for (const name of at) if (hypervisors.includes(name)) this.launches.set(`${name} ${id}`, order)
  }

  // the checks

  /** After a step of a daemon. */
  afterStep(hypervisor: Hypervisor): void {
    const { life, name } = hypervisor
    if (life?.isReady !== true) return
    const known = this.#of(name)
    if (known.checked !== life) {
      known.checked = life
      this.#checkStart(hypervisor, life, known)
    }
    if (life.storeSide.journalProblem()?.kind === 'not-deleted') known.isStale = true
    if (known.hasResynced) {
      known.hasResynced = false
      known.saysBehind = life.storeSide.sync.status().isStoreBehind
      known.comparedAtMs = this.#time.nowMs - life.storeSide.viewAgeSeconds() * 1_000
      this.#checkAge(name, life, known.comparedAtMs)
      const writtenAtMs = this.#time.wallMs() - life.storeSide.viewAgeSeconds() * 1_000
      known.writtenAtMs = [...known.writtenAtMs.slice(-1), writtenAtMs]
    }
    if (life.changed.size > 0) {
      for (const id of life.changed) {
        this.#time.note(`${name} serves ${id}: revision ${life.view.get(id)?.instance.revision ?? 'none'}`)
        this.#checkState(name, life, id, known)
      }
      this.#checkAddresses(name, life)
      this.#checkOwners(name, life, known)
      this.#checkMachines(name, life)
      life.changed.clear()
    }
    this.#checkKernel(hypervisor, life)
    for (const [key, order] of this.launches) {
      const [on, id] = key.split(' ') as [string, string]
      if (on === name) this.#launchIfOpen(hypervisor, life, id, order)
    }
  }

  /** The view of an instance moves forward in the history of the store. */
  #checkState(name: string, life: Life, id: string, known: Known): void {
    const served = life.digestOf(id)
    if (served === undefined && !known.served.delete(id)) return
    if (served !== undefined) known.served.add(id)
    const isIt = ({ digest, hypervisors, isRemoved }: Version) =>
      served !== undefined
        ? digest === served && hypervisors.includes(name)
        : isRemoved || (digest !== undefined && !hypervisors.includes(name))
    const history = this.#store.historyOf(id)
    const from = known.reached.get(id) ?? 0
    const act = known.acts.get(id) ?? 0
    const position = history.findIndex((version, at) => at >= from && version.act >= act && isIt(version))
    if (position !== -1) {
      known.reached.set(id, position)
      known.acts.set(id, history[position]!.act)
    } else if (served === undefined)
      this.#time.break(
        `absence is no removal: ${id} leaves the view of ${name}, and the store neither removed nor moved it`,
      )
    else if (history.some(isIt))
      this.#time.break(`nothing older is served than before: ${name} serves a former state of ${id} again`)
    else
      this.#time.break(
        `a view has only states that the store had: ${name} serves a state of ${id} that the store never had`,
      )
  }

  #forgetSenders(name: string): void {
    for (const [key, { hypervisor }] of this.senders) if (hypervisor === name) this.senders.delete(key)
  }

  #checkStart({ name, host }: Hypervisor, life: Life, known: Known): void {
    const { journal, ageMs, isComplete } = life.restored!
    const isOfOtherTime = known.writtenAtMs.some((atMs) => Math.abs(this.#time.wallMs() - atMs) > MAX_AGE_MS)
    if (journal !== 'served') {
      if (known.isSound && known.served.size > 0 && !isOfOtherTime)
        this.#time.break(`a daemon that starts again serves what the one before served: ${name} serves nothing`)
      if (journal === 'none') known.isStale = false
      known.served.clear()
      known.writtenAtMs = [this.#time.wallMs()]
      known.forget(this.#time.nowMs, false) // nothing is left that knows
      this.reports.forget(({ hypervisor }) => hypervisor === name)
      this.#stopMachines(({ hypervisor }) => hypervisor === name)
      this.#forgetSenders(name)
      return
    }
    // no file says which instances the store no longer has (journal.ts): until a resync, addresses they lost are contested
    this.#stopMachines(({ hypervisor, place }) => hypervisor === name && ownerOf(life, place) === 'contested')
    for (const id of IDS) this.#checkState(name, life, id, known)
    this.#checkOwners(name, life, known)
    this.#checkMachines(name, life)
    if (!host.wasSet && isComplete) this.#checkAge(name, life, this.#time.nowMs - ageMs! - 1) // clocks have whole milliseconds
    this.reports.checkStart(name, life)
  }

  /** The view has what the store had at a time, or what it has heard by then. */
  #checkAge(name: string, life: Life, atMs: number, isHeard = false): void {
    for (const id of IDS) {
      const history = this.#store.historyOf(id)
      const then = history.findLastIndex(
        (version) => version.atMs <= atMs && (!isHeard || version.heard.includes(name)),
      )
      const served = life.digestOf(id)
      const { acts, ...known } = this.#of(name)
      const saysBehind = known.saysBehind || life.storeSide.sync.status().isStoreBehind
      const seen = acts.get(id) ?? 0
      const isIt = ({ act, order, digest, hypervisors, isRemoved, isFaulty }: Version) =>
        isFaulty ||
        act < seen || // the store went back
        // so it did, and its clock is behind: it gives places that the daemon refuses, and says so; or the daemon has
        // read the removal of one that it never served
        ((served === undefined || saysBehind) && order > 0 && order <= life.view.seen(id)) ||
        (served === undefined ? !hypervisors.includes(name) : digest === served || (digest === undefined && !isRemoved))
      if (then > 0 && !history.slice(then).some(isIt))
        this.#time.break(`a view is as new as it should be: that of ${name} lacks a change of ${id} that is older`)
    }
  }

  /** Looks from time to time whether a daemon that is well, or the rules, have fallen behind. */
  checkPace(hypervisor: Hypervisor): void {
    const { name, life, disk } = hypervisor
    if (life?.isAnswering !== true) return
    this.#checkRules(hypervisor, life)
    this.#checkUnconfirmed(hypervisor, life)
    this.#checkKnown(hypervisor, life)
    if (!this.#store.isReachable(name)) return
    const { nowMs } = this.#time
    const { connected, changedAtMs, storeProblem } = life.storeSide.sync.status()
    const isSlow = disk.isFailing || nowMs - disk.troubledAtMs < RECOVERY_MS
    if (connected && storeProblem === undefined && !isSlow && nowMs - changedAtMs >= PACE_MS + DELAY_MS)
      this.#checkAge(name, life, nowMs - PACE_MS - DELAY_MS, true)
  }

  /** A daemon that is well serves a record that has come back. */
  willServe({ life, name, disk }: Hypervisor, id: string, entry: Entry): void {
    if (life === undefined || !entry.hypervisors.includes(name)) return
    const { losses } = this.#store
    const check = () => {
      const { connected, changedAtMs } = life.storeSide.sync.status()
      const isWell = connected && this.#time.nowMs - changedAtMs > DELAY_MS && this.#store.isReachable(name)
      const isSlow = disk.isFailing || this.#time.nowMs - disk.troubledAtMs < RECOVERY_MS
      const isCurrent = this.#store.primary.entries.get(id) === entry && this.#store.losses === losses
      if (isWell && !isSlow && isCurrent && life.view.get(id)?.order !== entry.order)
        this.#time.break(`a record that comes back is served: that of ${id} by ${name} is not`)
    }
    this.#time.after(DELAY_MS, check, life)
  }

  /** What the index of addresses says, computed again from the view. */
  #checkAddresses(name: string, life: Life): void {
    const { view } = life
    const claims = view
      .instances()
      .toArray()
      .map(({ instance }) => [instance.id, rangesOf(instance)] as const)
    for (const place of PLACES) {
      const has = ({ network, range }: NetworkRange) => `${network} ${range}` === place
      const all = claims.flatMap(([id, ranges]) => (ranges.some(has) ? [id] : []))
      const is = all.length > 1 ? 'contested' : (all[0] ?? 'unknown')
      const says = claimantOf(life, place)
      if (is !== says)
        this.#time.break(`an address has one owner: ${name} gives ${place} to ${says}, but by its records it is ${is}`)
    }
  }

  /** Whoever the kernel admits at an address gets no data of another there. */
  #checkKernel({ name, kernel }: Hypervisor, life: Life): void {
    if (!life.isAnswering || life.finder.firewallWait !== undefined) return
    for (const { id, place } of kernel.admitted) {
      const says = ownerOf(life, place)
      if (says !== id && IDS.includes(says))
        this.#time.break(
          `a packet that the kernel accepts gets no data of another: ${name} gives ${place} to ${says}, and its rules to ${id}`,
        )
    }
  }

  /** No address goes back to an earlier owner. */
  #checkOwners(name: string, life: Life, { acts, owners, former }: Known): void {
    const { primary } = this.#store
    const index = primary.index(name)
    for (const place of PLACES) {
      const id = claimantOf(life, place) // also before rules are confirmed
      const [network, address] = place.split(' ') as [string, string]
      const owner = primary.owner(network, address) ?? ''
      const hasIt = index.has(owner) && life.digestOf(owner) === index.get(owner)
      const actOf = (one: string) => acts.get(one) ?? 0
      // not if this change gives it to one that was published later, which a store that went back does not have
      const last = Math.max(owners.get(place)?.act ?? 0, former.get(place) ?? 0)
      // nor if a store that went back, and whose clock is behind, has given it an earlier order than the view has seen
      const isEarlier = (primary.entries.get(owner)?.order ?? 0) < (life.view.get(id)?.order ?? 0)
      if (hasIt && id !== owner && !isEarlier && actOf(owner) >= Math.max(actOf(id), last))
        this.#time.break(`the present owner has its address: ${name} gives ${place} to ${id}, not ${owner}`)
      if (!IDS.includes(id)) continue
      const [act, before] = [actOf(id), owners.get(place)]
      if (before !== undefined && before.id !== id && act < before.act)
        this.#time.break(
          `no address is served with data of an earlier owner: ${name} gives ${place} to ${id} (act ${act}) after ${before.id} (act ${before.act})`,
        )
      owners.set(place, { id, act: Math.max(act, before?.id === id ? before.act : 0) })
    }
  }

  #checkMachines(name: string, life: Life): void {
    for (const { id, hypervisor, place } of this.machines.values()) {
      const says = hypervisor === name ? claimantOf(life, place) : id
      if (says !== id)
        this.#time.break(`a guest that was launched is known: for ${name}, ${place} is ${says}, but the guest is ${id}`)
    }
  }

  #stopMachines(isStopped: (machine: Machine) => boolean): void {
    for (const [key, machine] of this.machines) if (isStopped(machine)) this.machines.delete(key)
  }

  /** Starts the guest of an instance if the launch gate lets it. */
  #launchIfOpen({ name, kernel }: Hypervisor, life: Life, id: string, order: number): void {
    const gate = life.gateOf(id)
    if (gate === undefined || gate.reason !== undefined || gate.order < order) return
    this.launches.delete(`${name} ${id}`)
    this.#time.note(`${name} lets the guest of ${id} start, revision ${gate.revision}`)
    if (!kernel.hasReported(life, FRESH_MS))
      this.#time.break(`the launch gate waits for the firewall: ${name} lets ${id} start, and its agent is silent`)
    const { instance } = life.view.get(id)!
    for (const one of instance.interfaces) {
      this.#attach(name, one.id, id)
      for (const { network, range } of rangesOf({ ...instance, interfaces: [one] })) {
        const place = `${network} ${range}`
        const machine = { id, hypervisor: name, place, link: one.id, macAddress: one.macAddress }
        this.machines.set(`${name} ${place}`, machine)
        this.senders.set(`${name} ${id} ${place}`, machine)
        if (kernel.isOpenFor(FRESH_MS) || kernel.accept(machine) === undefined || ownerOf(life, place) !== id)
          this.#time.break(`the launch gate waits for the firewall: ${name} lets ${id} start before its rules`)
      }
    }
    this.#checkMachines(name, life)
  }

  /** A link is that of a guest now. A former one that had it is off, and sends no more. */
  #attach(name: string, link: string, id: string): void {
    this.behind.set(`${name} ${link}`, id)
    for (const [key, sender] of this.senders)
      if (sender.hypervisor === name && sender.link === link && sender.id !== id) this.senders.delete(key)
  }

  /** Everything is well, and was long enough. */
  checkQuiet(hypervisor: Hypervisor): void {
    const { name, disk, life } = hypervisor
    if (life?.isReady !== true) {
      this.#time.break(`a daemon starts: that of ${name} does not`)
      return
    }
    const { view, storeSide } = life
    this.#checkUnconfirmed(hypervisor, life)
    const status = storeSide.sync.status()
    if (!status.connected || !status.ready || status.lagMs > 0)
      this.#time.break(`when all is quiet, a daemon is ready: ${name} has ${JSON.stringify(status)}`)
    const { primary } = this.#store
    const index = primary.index(name)
    for (const id of IDS) {
      const digest = view.get(id)?.digest
      const isKept = storeSide.sync.health.isAbsent(id)
      const isGone = !primary.entries.has(id) && !primary.tombstones.has(id)
      if (digest === index.get(id) ? isKept : !(isKept && isGone))
        this.#time.break(`when all is quiet, every view is what the store has: not that of ${name}, with ${id}`)
    }
    for (const place of PLACES) {
      const [network, address] = place.split(' ') as [string, string]
      const owner = primary.owner(network, address) ?? ''
      const says = ownerOf(life, place)
      if (index.has(owner) && says !== owner)
        this.#time.break(
          `when all is quiet, an address is that of its owner in the store: ${name} gives ${place} to ${says}, not ${owner}`,
        )
    }
    this.#checkAge(name, life, this.#time.nowMs - storeSide.viewAgeSeconds() * 1_000)
    this.reports.checkQuiet(name, life)
    const { files, bytes } = disk.size
    if (files > MAX_FILES || bytes > MAX_FILE_BYTES)
      this.#time.break(`files are bounded: ${name} has ${files} with ${bytes} bytes`)
    const timers = this.#time.pendingOf(life)
    if (timers > MAX_TIMERS) this.#time.break(`timers are bounded: ${name} has ${timers}`)
    this.#checkRules(hypervisor, life)
  }

  /** Once the rules are made from the view, they admit an instance only at addresses that it has. */
  #checkRules({ name, kernel }: Hypervisor, life: Life): void {
    const { applied } = life.storeSide.firewall.status()
    if (applied && kernel.isOpenFor(FRESH_MS))
      this.#time.break(`a confirmation counts for a few seconds: ${name} has no rules, and says that they are applied`)
    for (const { id, interfaces } of applied ? (kernel.rules?.guests ?? []) : []) {
      const places = interfaces.flatMap(({ network, ipv4Addresses, ipv6Addresses }) =>
        [...ipv4Addresses, ...ipv6Addresses].map((address) => `${network} ${address}`),
      )
      if (
        life.view.get(id) === undefined ||
        !places.every((place) => [id, 'contested'].includes(claimantOf(life, place)))
      )
        this.#time.break(`the rules are those of the view: ${name} still admits ${id}`)
    }
  }

  /** A daemon lets the store know the latest order that it has seen, at the latest by the next look. */
  #checkKnown({ name }: Hypervisor, life: Life): void {
    const known = this.#of(name)
    const { source } = life.storeSide
    if (known.latest?.life === life && (source as SimulatedSource).known < known.latest.order)
      this.#time.break(`a hypervisor announces the latest order that it knows: ${name} does not`)
    known.latest = { life, order: life.view.latest }
  }

  /** While the agent and the disk are well, what was gained is soon confirmed. */
  #checkUnconfirmed({ name, kernel, disk }: Hypervisor, life: Life): void {
    const { view } = life
    const { nowMs } = this.#time
    const { connected, changedAtMs } = life.storeSide.sync.status()
    // a start without a complete journal has no rules to give before it could use the store
    const couldUseStore = connected && nowMs - changedAtMs > CONFIRM_MS
    if (kernel.givenBy !== life && !couldUseStore) return
    const isDiskWell = !disk.isFailing && nowMs - disk.troubledAtMs > RECOVERY_MS
    if (!isDiskWell || nowMs - kernel.troubledAtMs < CONFIRM_MS) return
    for (const [place, { owner, sinceMs }] of view.unconfirmed())
      if (nowMs - sinceMs > CONFIRM_MS)
        this.#time.break(`rules are confirmed soon: ${place} of ${owner} on ${name} still waits`)
  }

  #of(name: string): Known {
    const known = this.#known.get(name) ?? new Known()
    this.#known.set(name, known)
    return known
  }
}

/** The id of the instance that the view gives a place to, `unknown`, `contested` or `unconfirmed`. */
export function ownerOf({ view }: Life, place: string): string {
  const [network, address] = place.split(' ') as [string, string]
  const found = view.find(network, address)
  return found.kind === 'owned' ? found.owner.instance.id : found.kind
}

/** The same, with the instance that has gained the place in place of `unconfirmed`. */
function claimantOf(life: Life, place: string): string {
  const owner = ownerOf(life, place)
  return owner === 'unconfirmed' ? (life.view.unconfirmed().get(place)?.owner ?? 'nobody') : owner
}
