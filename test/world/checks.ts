/**
 * The promises, checked after every step.
 *
 * - A view shows of each instance only states that the store had, and never an earlier one than before, in any life of
 *   the daemon. Absence is no removal.
 * - A guest that was launched is answered at once, and with its own values, until the control plane stops it.
 * - An address has one owner.
 * - A sealed value is not served.
 * - A daemon that starts again serves what the one before served, unless its disk failed or its clock is wrong.
 * - A daemon that says that its view is up to date has read everything that the store had then.
 * - A daemon that is connected has every change after a minute.
 * - A request that waits for a change is answered soon after the change.
 * - A report that was accepted stays.
 * - Files, timers and held requests stay within their bounds.
 * - When everything is well and quiet, every view is what the store has.
 */
import { rangesOf } from '../../src/metadata/instance.ts'
import { ipv6Digits } from '../../src/metadata/address.ts'
import { formatIdentityDocument } from '../../src/metadata/identity-document.ts'
import { parseReports } from '../../src/metadata/reports.ts'
import { IDS, PLACES } from './control-plane.ts'
import { MAX_AGE_MS, type Hypervisor, type Life } from './hypervisor.ts'
import type { SimulatedStore, Version } from './store.ts'
import type { Time } from './time.ts'

/** How long a change may take from the store to a view that hears of it. The longest latencies add up to it. */
const DELAY_MS = 15_000
/** How soon a daemon that is connected has a change. */
const PACE_MS = 60_000
/** A disk that failed has got over it after this time, and after another snapshot. */
const RECOVERY_MS = 60_000
/** What a report needs until the snapshot has it. */
const REPORT_MS = 45_000
/** How soon a request that waits is answered after a change: a signature takes up to 3 s. */
const WAIT_MS = 7_000
const MAX_FILES = 40
const MAX_FILE_BYTES = 12 * 1024 * 1024
const MAX_TIMERS = 200

/** A guest that runs on a hypervisor, at an address. */
export interface Machine {
  readonly id: string
  readonly hypervisor: string
  readonly place: string
}

/** A request that waits until another value than this one is there. */
export interface Waiting {
  readonly life: Life
  readonly id: string
  readonly isSigned: boolean
  readonly value: string | undefined
  isAnswered: boolean
}

interface Accepted {
  readonly hypervisor: string
  readonly id: string
  readonly name: string
  readonly value: string
  readonly atMs: number
  readonly stay: object
}

/** What the checks know of a hypervisor. */
class Known {
  /** Id -> the position in the history of the store that the view has reached. */
  readonly reached = new Map<string, number>()
  readonly served = new Set<string>()
  checked: Life | undefined
  /** What the next life must serve; undefined: whatever it does is right. */
  expected: ReadonlySet<string> | undefined
  /** The time of its snapshot. */
  writtenAtMs = 0
  isTroubled = false
  hasResynced = false
}

export class Checks {
  readonly #time: Time
  readonly #store: SimulatedStore
  readonly #known = new Map<string, Known>()
  readonly machines = new Map<string, Machine>()
  readonly #waiting = new Set<Waiting>()
  #accepted: Accepted[] = []
  /** Id -> the position in the history of the store at which it last lost something. */
  readonly #lostAt = new Map<string, number>()
  /** The first promise that was broken. */
  broken: string | undefined

  constructor(time: Time, store: SimulatedStore) {
    this.#time = time
    this.#store = store
  }

  /** Notes that a promise was broken. */
  break(sentence: string): void {
    this.broken ??= sentence
  }

  // what happens

  /** The disk of a hypervisor begins to fail, or its clock is set. */
  trouble({ name }: Hypervisor): void {
    this.#of(name).isTroubled = true
  }

  /** A file of a hypervisor was damaged: the next life may serve nothing. */
  damaged({ name }: Hypervisor): void {
    this.#of(name).isTroubled = true
    this.#of(name).expected = undefined
  }

  metric(hypervisor: Hypervisor, name: string, result: string): void {
    const known = this.#of(hypervisor.name)
    const { isFull, isHanging, troubledAtMs } = hypervisor.disk
    if (name === 'snapshotWrites' && result === 'written' && !isFull && !isHanging)
      if (this.#time.nowMs - troubledAtMs > RECOVERY_MS) known.isTroubled = false
    if (name === 'resyncs' && result === 'completed') known.hasResynced = true
  }

  log(hypervisor: Hypervisor, level: 'warn' | 'error', message: string): void {
    if (level === 'error' && !message.includes('cannot be used'))
      this.break(`no request and no record fails unexpectedly: ${hypervisor.name} logs ${message}`)
  }

  /** The daemon of a hypervisor is about to be killed. */
  dies({ name, life }: Hypervisor): void {
    const known = this.#of(name)
    if (life?.isReady === true) known.expected = new Set(life.view.ids())
    const { nowMs } = this.#time
    this.#accepted = this.#accepted.filter(
      (one) => one.hypervisor !== name || this.#isStored(one) || (!known.isTroubled && nowMs - one.atMs > REPORT_MS),
    )
  }

  /** The daemon of a hypervisor was killed, and perhaps its power was cut. */
  died({ name, disk, life }: Hypervisor): void {
    const known = this.#of(name)
    if (life !== undefined || known.expected === undefined) return
    const isSound = !known.isTroubled && !disk.hasDamage
    known.writtenAtMs = disk.writtenAtMs('view.snapshot') ?? -Infinity
    if (isSound && known.expected.size > 0 && !disk.has('view.snapshot'))
      this.break(`a view that is served has a snapshot: ${name} has none`)
    if (!isSound) known.expected = undefined
  }

  /** The store has lost something: these instances are other than before, and reports may be gone. */
  storeLost(ids: readonly string[]): void {
    for (const id of ids) {
      this.stop(id)
      this.#lostAt.set(id, this.#store.historyOf(id).length - 1)
    }
    for (const [key, { id, place }] of this.machines) {
      const [network, address] = place.split(' ') as [string, string]
      if ((this.#store.primary.owner(network, address) ?? id) !== id) this.machines.delete(key)
    }
    this.#accepted = []
  }

  /** Whether a view has an instance as it is since the store last lost a state of it: it may still go back before. */
  isSinceLoss({ name }: Hypervisor, id: string): boolean {
    return (this.#of(name).reached.get(id) ?? 0) >= (this.#lostAt.get(id) ?? 0)
  }

  stop(id: string, of?: readonly string[]): void {
    for (const [key, machine] of this.machines)
      if (machine.id === id && of?.includes(machine.hypervisor) !== false) this.machines.delete(key)
  }

  /** An instance is about to be changed: its reports may be moved or deleted. */
  changes(id: string, isMoved: boolean): void {
    if (isMoved) this.#accepted = this.#accepted.filter((one) => one.id !== id)
  }

  /** The launch gate is open for an instance: its guest starts. */
  launched({ name, life, rules }: Hypervisor, id: string, revision: number): void {
    const { instance } = life!.view.get(id)!
    const admitted = rules?.guests.find((guest) => guest.id === id)
    if (admitted === undefined || admitted.revision < revision)
      this.break(`the launch gate waits for the firewall: ${name} lets ${id} start before its rules`)
    for (const { network, range } of rangesOf(instance))
      this.machines.set(`${name} ${network} ${range}`, { id, hypervisor: name, place: `${network} ${range}` })
    this.#checkMachines(name, life!)
  }

  waits(waiting: Waiting): void {
    this.#waiting.add(waiting)
  }

  accepted(hypervisor: string, id: string, name: string, value: string, life: Life): void {
    const { stay } = life.view.get(id)!
    // during a migration, the last report of either hypervisor counts
    this.#accepted = this.#accepted.filter((one) => one.id !== id || one.name !== name)
    this.#accepted.push({ hypervisor, id, name, value, atMs: this.#time.nowMs, stay })
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
    if (known.hasResynced) {
      known.hasResynced = false
      this.#checkAge(name, life, this.#time.nowMs - life.storeSide.viewAgeSeconds() * 1_000)
    }
    if (life.changed.size === 0) return
    for (const id of life.changed) this.#checkState(name, life, id, known)
    this.#checkAddresses(name, life)
    this.#checkMachines(name, life)
    this.#checkWaiting(life)
    life.changed.clear()
  }

  /** The view of an instance moves forward in the history of the store. */
  #checkState(name: string, { view }: Life, id: string, known: Known): void {
    const digest = view.get(id)?.digest
    if (digest === undefined && !known.served.has(id)) return
    const isIt =
      digest !== undefined
        ? (version: Version) => version.digest === digest && version.hypervisors.includes(name)
        : (version: Version) =>
            version.isRemoved || (version.digest !== undefined && !version.hypervisors.includes(name))
    const history = this.#store.historyOf(id)
    const from = known.reached.get(id) ?? 0
    const position = history.findIndex((version, at) => at >= from && isIt(version))
    if (digest === undefined) known.served.delete(id)
    else known.served.add(id)
    if (position !== -1) {
      known.reached.set(id, position)
      return
    }
    const former = history.findLastIndex((version, at) => at < from && isIt(version))
    this.break(
      digest === undefined
        ? `absence is no removal: ${id} leaves the view of ${name}, and the store neither removed nor moved it`
        : former === -1
          ? `a view has only states that the store had: ${name} serves a state of ${id} that the store never had for it`
          : `nothing older is served than before: ${name} serves a former state of ${id} again`,
    )
  }

  #checkStart({ name, host }: Hypervisor, life: Life, known: Known): void {
    const { files, ageMs } = life.restored!
    const expected = known.expected
    known.expected = undefined
    const isServed = files === 'served'
    const isOfOtherTime = Math.abs(this.#time.wallMs() - known.writtenAtMs) > MAX_AGE_MS
    if (expected !== undefined && expected.size > 0 && !isServed && !isOfOtherTime)
      this.break(`a daemon that starts again serves what the one before served: ${name} serves nothing`)
    if (!isServed) {
      known.served.clear()
      this.#accepted = this.#accepted.filter((one) => one.hypervisor !== name)
      for (const [key, { hypervisor }] of this.machines) if (hypervisor === name) this.machines.delete(key)
      return
    }
    // no file says which instances the store no longer has (journal.ts): until a resync, addresses they lost are contested
    for (const [key, { hypervisor, place }] of this.machines) {
      const [network, address] = place.split(' ') as [string, string]
      if (hypervisor === name && life.view.find(network, address).kind === 'contested') this.machines.delete(key)
    }
    for (const id of IDS) this.#checkState(name, life, id, known)
    this.#checkMachines(name, life)
    if (!host.wasSet && life.restored!.isComplete) this.#checkAge(name, life, this.#time.nowMs - ageMs!)
    for (const one of this.#accepted) {
      if (one.hypervisor !== name) continue
      const served = life.view.get(one.id)
      if (served === undefined || this.#isStored(one)) continue
      const reports = life.reports.of(served)
      if (reports?.attributes.get(one.name)?.value !== one.value)
        this.break(`a report that was accepted stays: ${name} has lost that of ${one.id} at a start`)
    }
    this.#accepted = this.#accepted.map((one) => {
      const served = one.hypervisor === name ? life.view.get(one.id) : undefined
      return served === undefined ? one : { ...one, stay: served.stay }
    })
  }

  /** The view has what the store had at a time, or what it has heard by then. */
  #checkAge(name: string, { view }: Life, atMs: number, isHeard = false): void {
    for (const id of IDS) {
      const history = this.#store.historyOf(id)
      const then = history.findLastIndex(
        (version) => version.atMs <= atMs - DELAY_MS && (!isHeard || version.heard.includes(name)),
      )
      if (then <= 0) continue
      const digest = view.get(id)?.digest
      const isSince = history.some(
        (version, at) =>
          at >= then &&
          (digest === undefined
            ? !version.hypervisors.includes(name)
            : version.digest === digest || (version.digest === undefined && !version.isRemoved)),
      )
      if (!isSince)
        this.break(`a view is as new as it should be: that of ${name} lacks a change of ${id} that is older`)
    }
  }

  /** Looks from time to time whether a daemon that is well has fallen behind. */
  checkPace(hypervisor: Hypervisor): void {
    const { name, life, disk } = hypervisor
    if (life?.isAnswering !== true) return
    const { nowMs } = this.#time
    const { connected, changedAtMs, isStoreUnusable } = life.storeSide.sync.status()
    const isSlow = disk.isFull || disk.isHanging || nowMs - disk.troubledAtMs < RECOVERY_MS
    if (!connected || isStoreUnusable || isSlow || nowMs - changedAtMs < PACE_MS + DELAY_MS) return
    if (this.#store.isReachable(name)) this.#checkAge(name, life, nowMs - PACE_MS, true)
  }

  /** What an address index says, computed again from the view. */
  #checkAddresses(name: string, { view }: Life): void {
    const claims = [...view.instances()].flatMap(({ instance }) =>
      rangesOf(instance).map(({ network, range }) => ({ place: `${network} ${digitsOf(range)}`, id: instance.id })),
    )
    for (const place of PLACES) {
      const [network, address] = place.split(' ') as [string, string]
      const found = view.find(network, address)
      const key = `${network} ${digitsOf(address)}`
      const claimants = claims.filter((claim) => claim.place === key).map(({ id }) => id)
      const sure = claimants.filter((id) => !view.isUnconfirmed(id))
      const owners = sure.length > 0 ? sure : claimants
      const is = owners.length === 0 ? 'unknown' : owners.length > 1 ? 'contested' : owners[0]!
      const says = found.kind === 'owned' ? found.owner.instance.id : found.kind
      if (is !== says)
        this.break(`an address has one owner: ${name} gives ${place} to ${says}, but by its records it is ${is}`)
    }
  }

  #checkMachines(name: string, { view }: Life): void {
    for (const [key, { id, hypervisor, place }] of this.machines) {
      if (hypervisor !== name) continue
      const [network, address] = place.split(' ') as [string, string]
      const found = view.find(network, address)
      const says = found.kind === 'owned' ? found.owner.instance.id : found.kind
      // of two that an emptied store no longer has, none is known to be the owner: that which had lost it before, too
      if (says === 'contested' && view.isUnconfirmed(id)) this.machines.delete(key)
      else if (says !== id)
        this.break(`a guest that was launched is known: for ${name}, ${place} is ${says}, but the guest is ${id}`)
    }
  }

  #checkWaiting(life: Life): void {
    for (const waiting of this.#waiting) {
      if (waiting.isAnswered || !waiting.life.isAlive) {
        this.#waiting.delete(waiting)
        continue
      }
      if (waiting.life !== life || !life.changed.has(waiting.id)) continue
      const { id, isSigned } = waiting
      const changed = waitedFor(life, id, isSigned)
      if (changed === waiting.value) continue
      const late = () => {
        if (!waiting.isAnswered && waitedFor(life, id, isSigned) === changed)
          this.break(`a request that waits is answered after a change: one of ${id} still waits`)
      }
      this.#time.after(WAIT_MS, late, life)
    }
  }

  /** Everything is well, and was long enough. */
  checkQuiet(hypervisor: Hypervisor): void {
    const { name, disk, life } = hypervisor
    if (life?.isReady !== true) {
      this.break(`a daemon starts: that of ${name} does not`)
      return
    }
    const status = life.storeSide.sync.status()
    if (!status.connected || !status.ready || status.lagMs > 0)
      this.break(
        `when all is quiet, a daemon is ready: ${name} says ${status.problem ?? `lag ${String(status.lagMs)}`}`,
      )
    const index = this.#store.primary.index(name)
    for (const id of IDS) {
      const digest = life.view.get(id)?.digest
      const isKept = digest !== undefined && life.view.isUnconfirmed(id)
      const has = this.#store.primary
      const isUnknown = !has.entries.has(id) && !has.tombstones.has(id)
      if (digest === index.get(id) ? isKept : !(isKept && isUnknown))
        this.break(
          `when all is quiet, every view is what the store has: ${name} ` +
            `${digest === undefined ? 'lacks' : isKept ? 'doubts' : 'has another'} ${id}`,
        )
    }
    this.#checkAge(name, life, this.#time.nowMs - life.storeSide.viewAgeSeconds() * 1_000)
    for (const one of this.#accepted) {
      if (one.hypervisor !== name || life.view.get(one.id)?.stay !== one.stay) continue
      if (!this.#isStored(one))
        this.break(`a report that was accepted reaches the store: not that of ${one.id} on ${name}`)
    }
    const { files, bytes } = disk.size
    if (files > MAX_FILES || bytes > MAX_FILE_BYTES)
      this.break(`files are bounded: ${name} has ${String(files)} with ${String(bytes)} bytes`)
    const timers = this.#time.pendingOf(life)
    if (timers > MAX_TIMERS) this.break(`timers are bounded: ${name} has ${String(timers)}`)
    const ids = new Set(life.view.ids())
    if (life.storeSide.firewall.status().applied)
      for (const guest of hypervisor.rules?.guests ?? [])
        if (!ids.has(guest.id)) this.break(`the rules are those of the view: ${name} still admits ${guest.id}`)
  }

  #isStored({ hypervisor, id, name, value }: Accepted): boolean {
    const text = this.#store.primary.reports.get(`${hypervisor} ${id}`)
    return text !== undefined && parseReports(text)?.attributes.get(name)?.value === value
  }

  #of(name: string): Known {
    const known = this.#known.get(name) ?? new Known()
    this.#known.set(name, known)
    return known
  }
}

/** What a request that waits depends on, as the view has it now. */
export function waitedFor({ view }: Life, id: string, isSigned: boolean): string | undefined {
  const instance = view.get(id)?.instance
  return instance && (isSigned ? formatIdentityDocument(instance) : instance.fqdn)
}

function digitsOf(address: string): string {
  return address.includes(':') ? ipv6Digits(address) : address
}
