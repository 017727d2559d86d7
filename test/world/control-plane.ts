/**
 * The control plane of the world: what it wants of each instance, and its publishers, which are the real ones.
 *
 * It does what an operator's does: it stops the guest of an instance before it takes an address or a hypervisor from it,
 * one change of an instance at a time, and publishes everything again after the store has lost something.
 */
import { StoreBehind, type Publisher } from '../../src/store/publisher.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import type { Dice } from '../fuzz/dice.ts'
import type { Checks } from './checks.ts'
import type { Region } from './region.ts'
import type { Time } from './time.ts'

export const IDS = Array.from({ length: 10 }, (_, n) => `srv-${n}`)
export const NAMES = ['hv1', 'hv2', 'hv3']
const ADDRESSES = ['10.0.0.1', '10.0.0.2', '10.0.0.3', '10.0.0.4', '10.0.0.5', '10.0.0.6', 'fd00::1', 'fd00::2']
/** Every address that a guest may have, as `NETWORK ADDRESS`. */
export const PLACES = [...ADDRESSES, '10.0.0.7', '10.0.0.8', '10.0.0.9']
  .map((address) => `default ${address}`)
  .concat(ADDRESSES.slice(0, 4).map((address) => `blue ${address}`))

/** What the control plane wants. `revision`: of the last publish, whether or not it succeeded. */
export interface Wanted {
  readonly revision: number
  readonly hypervisors: readonly string[]
  /** `NETWORK ADDRESS`; none if the instance is removed. */
  readonly places: readonly string[]
  readonly image: number
  readonly userData: Buffer | undefined
  readonly sealedAt: string | undefined
  /** The store has answered that it has this. */
  readonly isConfirmed: boolean
}

const NOTHING: Wanted = {
  revision: 0,
  hypervisors: [],
  places: [],
  image: 0,
  userData: undefined,
  sealedAt: undefined,
  isConfirmed: true,
}

export class ControlPlane {
  readonly #publisher: Publisher
  /** What the primary has now. */
  readonly #region: () => Region
  readonly #names: readonly string[]
  readonly #checks: Checks
  readonly #time: Time
  readonly #wanted = new Map<string, Wanted>()
  /** The places that an instance may have got: its last change has no answer. */
  readonly #asked = new Map<string, readonly string[]>()
  /** The links of an instance: those that were made for this one. */
  readonly #links = new Map(IDS.map((id) => [id, id]))
  /** Instances that a publisher changes now. */
  readonly #busy = new Set<string>()
  /** Instances of which another one had an address when they were last published. */
  readonly #blocked = new Set<string>()
  /** How often the store has lost something. */
  #losses = 0

  /** `names`: the hypervisors that new instances get. */
  constructor(publisher: Publisher, region: () => Region, names: readonly string[], checks: Checks, time: Time) {
    this.#names = names
    this.#region = region
    this.#publisher = publisher
    this.#checks = checks
    this.#time = time
  }

  wantedOf(id: string): Wanted {
    return this.#wanted.get(id) ?? NOTHING
  }

  /** Whether a link is one of an instance now. That of another one before is gone, with its guest. */
  hasLink(id: string, link: string): boolean {
    return link.startsWith(`int-${this.#links.get(id)!.slice(4)}`)
  }

  /** The store has lost something: what it has of these instances is not known. */
  storeLost(ids: readonly string[]): void {
    this.#losses += 1
    for (const id of ids) this.#wanted.set(id, { ...this.wantedOf(id), isConfirmed: false })
  }

  /** What the store has of an instance, if the control plane knows it and changes nothing now. */
  settled(id: string): Wanted | undefined {
    const wanted = this.wantedOf(id)
    return wanted.isConfirmed && !this.#busy.has(id) ? wanted : undefined
  }

  get isBusy(): boolean {
    return this.#busy.size > 0
  }

  /** Publishes a new revision of an instance: often at the same places. */
  async put(id: string, dice: Dice): Promise<void> {
    const before = this.wantedOf(id)
    const isNew = before.hypervisors.length === 0
    const keepsPlaces = !isNew && dice.chance(0.6)
    const places = keepsPlaces ? before.places : this.#freePlaces(id, dice)
    if (places.length === 0) return
    const userData = dice.chance(0.2)
      ? before.userData
      : dice.chance(0.7)
        ? Buffer.from(`#!/bin/sh\n# ${id} ${dice.below(1_000_000)}\n`)
        : undefined
    const hypervisors = isNew ? [dice.pick(this.#names)] : before.hypervisors
    await this.#publish(id, { ...before, hypervisors, places, userData, image: dice.below(4) }, dice)
  }

  /** The next step of a live migration: to another hypervisor as well, or away from the first one. */
  async move(id: string, dice: Dice): Promise<void> {
    const before = this.wantedOf(id)
    const [first, second] = before.hypervisors
    if (first === undefined) return
    const others = NAMES.filter((name) => name !== first)
    const hypervisors =
      second !== undefined ? [second] : dice.chance(0.7) ? [first, dice.pick(others)] : [dice.pick(others)]
    await this.#publish(id, { ...before, hypervisors }, dice)
  }

  /** Removes an instance, and gives its places to another one at once; `withLinks`: and its links, to a new one. */
  async handOver(id: string, to: string, dice: Dice, withLinks = false): Promise<void> {
    const { places, hypervisors } = this.wantedOf(id)
    const heir = this.wantedOf(to)
    if (id === to || places.length === 0 || this.#busy.has(to)) return
    if (withLinks && heir.places.length > 0) return
    await this.remove(id)
    if (this.settled(id)?.places.length !== 0) return
    if (withLinks) {
      const links = this.#links.get(id)!
      this.#links.set(id, this.#links.get(to)!)
      this.#links.set(to, links)
    }
    await this.#publish(to, { ...heir, hypervisors, places }, dice)
  }

  /** Two instances exchange their places, by way of a free one. */
  async exchange(a: string, b: string, dice: Dice): Promise<void> {
    const [one, other] = [this.wantedOf(a), this.wantedOf(b)]
    if (a === b || one.places.length === 0 || other.places.length === 0 || this.#busy.has(b)) return
    await this.#publish(a, { ...one, places: this.#freePlaces(a, dice) }, dice)
    if (this.wantedOf(a).places === one.places) return
    await this.#publish(b, { ...this.wantedOf(b), places: one.places }, dice)
    if (this.wantedOf(b).places !== one.places) return
    await this.#publish(a, { ...this.wantedOf(a), places: other.places }, dice)
  }

  /** An instance gets another place, and then the one of before again. */
  async thereAndBack(id: string, dice: Dice): Promise<void> {
    const { places } = this.wantedOf(id)
    if (places.length === 0) return
    await this.#publish(id, { ...this.wantedOf(id), places: this.#freePlaces(id, dice) }, dice)
    await this.#publish(id, { ...this.wantedOf(id), places }, dice)
  }

  async remove(id: string): Promise<void> {
    const before = this.wantedOf(id)
    if (before.hypervisors.length === 0 || this.#busy.has(id)) return
    this.#checks.stop(id)
    await this.#change(id, true, async () => {
      const revision = before.revision + 1
      const result = await this.#publisher.remove(id, revision)
      this.#time.note(`the removal of ${id} is ${result.kind}`)
      this.#wanted.set(id, { ...NOTHING, revision: result.kind === 'stale' ? result.revision : revision })
    })
  }

  /** Seals or unseals the user-data of an instance. */
  async seal(id: string, isSeal: boolean): Promise<void> {
    const before = this.wantedOf(id)
    if (before.hypervisors.length === 0 || !before.isConfirmed || this.#busy.has(id)) return
    await this.#change(id, false, async () => {
      const losses = this.#losses
      const result = await (isSeal ? this.#publisher.seal(id) : this.#publisher.unseal(id)).catch(refusedAsBehind)
      this.#time.note(`${isSeal ? 'the seal' : 'the unseal'} of ${id} is ${result.kind}`)
      if (result.kind === 'behind' || result.kind === 'absent' || result.kind === 'address-owned') return
      const sealedAt = result.kind === 'unsealed' ? undefined : result.sealedAt
      this.#wanted.set(id, { ...before, revision: result.revision, sealedAt, isConfirmed: losses === this.#losses })
    })
  }

  /**
   * Publishes again what is wanted, removals first: the store has lost something, or nobody knows. Instances of which each
   * has an address that another one wants (the store has lost an exchange) are removed before they are published. When
   * all is published, the mark "behind" of that region is cleared.
   */
  async rebuild(): Promise<void> {
    const region = this.#region()
    const mark = region.behind
    const all = [...this.#wanted].toSorted(([, a], [, b]) => a.hypervisors.length - b.hypervisors.length)
    for (let attempt = 0; attempt < 3; attempt++) for (const [id] of all) await this.#repeat(id, attempt)
    const isAll = all.every(([id]) => this.settled(id) !== undefined)
    if (isAll && this.#region() === region && region.behind === mark) region.behind = undefined
  }

  async #repeat(id: string, attempt: number): Promise<void> {
    if (this.#busy.has(id)) return
    const wanted = this.wantedOf(id)
    const revision = wanted.revision + (attempt > 0 && !wanted.isConfirmed ? 1 : 0)
    this.#checks.stop(id)
    const isBlocked = attempt === 1 && this.#blocked.has(id)
    await this.#change(id, !wanted.isConfirmed, async () => {
      if (wanted.hypervisors.length > 0 && !isBlocked) return this.#send(id, { ...wanted, revision }, wanted)
      const result = await this.#publisher.remove(id, Math.max(1, revision))
      const last = result.kind === 'stale' ? result.revision : revision
      if (result.kind === 'stale' || isBlocked) this.#wanted.set(id, { ...wanted, revision: last + 1 })
    })
  }

  async #publish(id: string, change: Wanted, dice: Dice): Promise<void> {
    if (this.#busy.has(id) || change.places.length === 0 || change.hypervisors.length === 0) return
    const before = this.wantedOf(id)
    const wanted = { ...change, revision: before.revision + 1 }
    const keepsPlaces = before.places.every((place) => wanted.places.includes(place))
    const left = before.hypervisors.filter((name) => !keepsPlaces || !wanted.hypervisors.includes(name))
    this.#checks.stop(id, left)
    const keeps = wanted.userData === before.userData && dice.chance(0.5)
    const isMoved = before.hypervisors.join() !== wanted.hypervisors.join()
    await this.#change(id, isMoved, () => this.#send(id, wanted, before, keeps))
  }

  async #send(id: string, wanted: Wanted, before: Wanted, keeps = false): Promise<void> {
    this.#wanted.set(id, { ...before, revision: wanted.revision, isConfirmed: false })
    this.#asked.set(id, wanted.places)
    const losses = this.#losses
    const result = await this.#publisher
      .put(documentOf(id, this.#links.get(id)!, wanted), keeps ? 'keep' : (wanted.userData ?? 'none'))
      .catch(refusedAsBehind)
    this.#asked.delete(id)
    if (result.kind === 'address-owned') this.#blocked.add(id)
    else this.#blocked.delete(id)
    const { revision, hypervisors } = wanted
    this.#time.note(`revision ${revision} of ${id} on ${hypervisors.join(' and ')} is ${result.kind}`)
    const isSure = losses === this.#losses
    if (result.kind === 'published' || result.kind === 'unchanged') {
      const confirmed = { ...wanted, sealedAt: result.instance.sealedAt, isConfirmed: isSure }
      this.#wanted.set(id, confirmed)
      if (isSure) this.#checks.launch(id, confirmed)
      return
    }
    if (result.kind === 'invalid' && !result.faults.every(({ path }) => path === '/userData'))
      this.#time.break(`a valid record is published: ${JSON.stringify(result.faults)}`)
    const isStale = result.kind === 'stale'
    const last = isStale ? Math.max(revision, result.revision) : revision
    const isConfirmed = before.isConfirmed && isSure && !isStale
    this.#wanted.set(id, { ...before, revision: last, isConfirmed })
    if (isConfirmed) this.#checks.launch(id, before)
  }

  /**
   * Makes a change of an instance, unless one is under way. `isMoved`: what its guest has reported may be moved or
   * deleted.
   */
  async #change(id: string, isMoved: boolean, change: () => Promise<void>): Promise<void> {
    if (this.#busy.has(id)) return
    this.#busy.add(id)
    if (isMoved) this.#checks.reports.forget((one) => one.id === id)
    try {
      await change()
    } catch (error) {
      this.#time.note(`the change of ${id} failed: ${(error as Error).message}`)
      const wanted = this.wantedOf(id)
      this.#checks.stop(id)
      this.#wanted.set(id, { ...wanted, revision: wanted.revision + 1, isConfirmed: false })
    } finally {
      this.#busy.delete(id)
    }
  }

  /** One or two places that no other instance has, nor may still get from a change under way. */
  #freePlaces(id: string, dice: Dice): string[] {
    const others = IDS.filter((other) => other !== id)
    const taken = new Set(
      others.flatMap((other) => [...this.wantedOf(other).places, ...(this.#asked.get(other) ?? [])]),
    )
    const free = PLACES.filter((place) => !taken.has(place))
    const first = free[dice.below(free.length)]
    if (first === undefined) return []
    const second = dice.chance(0.3) ? free[dice.below(free.length)] : undefined
    return second === undefined || second === first ? [first] : [first, second]
  }
}

/** The record of an instance, with the links of `linksOf`. Its host name names the revision. */
function documentOf(
  id: string,
  linksOf: string,
  { revision, hypervisors, places, image, sealedAt }: Wanted,
): Record<string, unknown> {
  return anInstance({
    id,
    revision,
    fqdn: `r${revision}.${id}.example.com`,
    image: `img-${image}`,
    hypervisors,
    interfaces: places.map((place, n) => {
      const [network, address] = place.split(' ') as [string, string]
      return {
        id: `int-${linksOf.slice(4)}${'ab'[n]!}`,
        macAddress: `02:00:00:00:0${n}:0${linksOf.slice(4)}`,
        network,
        [address.includes(':') ? 'ipv6Addresses' : 'ipv4Addresses']: [address],
      }
    }),
    options: { reports: 'enabled', httpProtocolIpv6: 'enabled' },
    ...(sealedAt !== undefined && { sealedAt }),
  })
}

/** A region that is marked "behind" refuses what would publish its own contents again: nothing has changed. */
function refusedAsBehind(error: unknown): { readonly kind: 'behind' } {
  if (error instanceof StoreBehind) return { kind: 'behind' }
  throw error
}
