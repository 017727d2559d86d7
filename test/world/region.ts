/**
 * A region of the store, as publish.lua keeps it: a model of the script for records that publishers have checked.
 * test/redis/world-model.test.ts sends the same random calls to the script in a real Redis.
 *
 * A model, because the script itself in a Lua interpreter (fengari) takes 5 ms a call, 200 times as long as the model.
 */
import { createHash } from 'node:crypto'
import { ipv6Digits, overlap } from '../../src/metadata/address.ts'
import { parseJson } from '../../src/runtime/json.ts'
import type { ScriptAnswer, ScriptArguments } from '../../src/store/redis/script.ts'
import { MAX_PLACE_AHEAD_MS } from '../../src/store/order.ts'
import { sealAfter } from '../../src/store/seal.ts'

/** What a hypervisor says of a place may be this far ahead (publish.lua). */
const MAX_SAID_AHEAD_MS = 22 * 3_600_000
const TOMBSTONE_MS = 7 * 24 * 3_600_000

/** An instance of the region. A claim is `NETWORK RANGE`. */
export interface Entry {
  /** The place of the publish in the order of the region. */
  readonly order: number
  readonly revision: number
  readonly digest: string
  readonly record: Buffer
  readonly userData: Buffer | undefined
  readonly claims: readonly string[]
  readonly hypervisors: readonly string[]
  readonly sealedAt: string | undefined
  /** Another program wrote it. */
  readonly isFaulty: boolean
}

interface Tombstone {
  readonly order: number
  readonly revision: number
  readonly sealedAt: string | undefined
  readonly expiresAtMs: number
}

interface Facts {
  readonly id: string
  readonly order?: number
  readonly fromStore?: boolean
  readonly revision: number
  readonly hypervisors: readonly string[]
  readonly sealedAt?: string | undefined
  readonly userData?: { readonly size: number; readonly sha256: string }
  readonly interfaces: readonly (Partial<Record<'ipv4Addresses' | 'ipv6Addresses' | 'ipv6Prefixes', string[]>> & {
    network?: string
  })[]
}

/** Called for each notice that the script publishes. */
export type Notify = (hypervisor: string, id: string) => void

/**
 * A server of Redis with the contents of a region. `history`: its replication id; `database` and `complete`: as StoreState.
 * `copy` is what a replica has.
 */
export class Region {
  history = '1'
  /** The last place in the order. */
  last = 0
  /** The place of the mark "behind"; undefined: there is none. */
  behind: number | undefined
  /** Hypervisor -> the highest place that it has announced. */
  announced = new Map<string, number>()
  /** How far the clock of the server is off. */
  clockMs = 0
  isUp = true
  #nowMs = 0
  isInitialised = false
  database: string | undefined
  complete: string | undefined
  entries = new Map<string, Entry>()
  tombstones = new Map<string, Tombstone>()
  /** `HYPERVISOR ID` -> what a guest has reported there. */
  reports = new Map<string, Buffer>()

  copy(): Region {
    const { entries, tombstones, reports, announced } = this
    const maps = { entries: new Map(entries), tombstones: new Map(tombstones), reports: new Map(reports) }
    return Object.assign(new Region(), this, maps, { announced: new Map(announced) })
  }

  /** Id -> digest of a hypervisor's instances. */
  index(hypervisor: string): Map<string, string> {
    const own = [...this.entries].filter(([, { hypervisors }]) => hypervisors.includes(hypervisor))
    return new Map(own.map(([id, entry]) => [id, digestOf(entry)]))
  }

  /** The instance, other than `id`, that owns a range or a part of it: of several, the one with the first range. */
  owner(network: string, range: string, id?: string): string | undefined {
    const members = [...this.entries].flatMap(([other, { claims }]) =>
      claims.flatMap((claim) => {
        const [on, theirs] = claim.split(' ') as [string, string]
        if (other === id || on !== network || !overlap(theirs, range)) return []
        return [`${theirs.includes(':') ? ipv6Digits(theirs) : theirs} ${other}`]
      }),
    )
    return members.sort()[0]?.split(' ')[1]
  }

  /** Deletes the tombstones that are too old. Returns their ids. */
  expire(nowMs: number): string[] {
    const expired = [...this.tombstones].filter(([, { expiresAtMs }]) => expiresAtMs <= nowMs).map(([id]) => id)
    for (const id of expired) this.tombstones.delete(id)
    return expired
  }

  /** Runs the script. */
  run([verb, ...args]: ScriptArguments, nowMs: number, notify: Notify): ScriptAnswer {
    this.#nowMs = nowMs
    switch (verb) {
      case 'put':
      case 'unseal':
        return this.#put(args as [string, string, Buffer?], verb === 'unseal', notify)
      case 'put-encrypted':
      case 'unseal-encrypted':
      case 'encrypt':
        return this.#putEncrypted(args as [string, Buffer, Buffer, string], verb, notify)
      case 'remove':
      case 'remove-encrypted':
        return this.#remove(args as [string, string?, string?], nowMs, notify)
      case 'init': {
        const isNew = !this.isInitialised
        this.isInitialised = true
        return [isNew ? 'initialised' : 'unchanged']
      }
      default:
        throw new Error(`the model has no ${String(verb)}`)
    }
  }

  #put([text, mode, set]: [string, string, Buffer?], lifts: boolean, notify: Notify): ScriptAnswer {
    const facts = JSON.parse(text) as Facts
    if (this.behind !== undefined && (mode === 'keep' || lifts)) return ['refused', 'behind']
    const before = this.entries.get(facts.id)
    const held = before && (parseJson(before.record.toString()) as Partial<Facts> | undefined)?.userData
    const bytes = mode === 'keep' ? before?.userData : mode === 'set' ? set : undefined
    const isOther = mode === 'keep' && held?.sha256 !== facts.userData?.sha256
    if (isOther || bytes?.length !== facts.userData?.size) return ['refused', 'user-data']
    const sealedAt = sealAfter(this.#last(facts.id)?.sealedAt, facts.sealedAt, lifts)
    const sealed = sealedAt === facts.sealedAt ? text : text.replace(/\}\s*$/, `,"sealedAt":"${String(sealedAt)}"}`)
    return this.#write({ ...facts, sealedAt }, Buffer.from(sealed), bytes, 'plain', notify)
  }

  #putEncrypted(
    args: [string, Buffer, Buffer, string],
    verb: 'put-encrypted' | 'unseal-encrypted' | 'encrypt',
    notify: Notify,
  ): ScriptAnswer {
    const [text, record, userData, digest] = args
    const facts = JSON.parse(text) as Facts
    if (this.behind !== undefined && facts.fromStore === true) return ['refused', 'behind']
    const last = this.#last(facts.id)
    if (last !== undefined && facts.revision < last.revision) return ['refused', 'stale', String(last.revision)]
    const held = verb === 'unseal-encrypted' ? undefined : last?.sealedAt
    if (held !== undefined && held !== facts.sealedAt) return ['refused', 'sealed', held]
    const entry = this.entries.get(facts.id)
    const is = entry === undefined ? 'none' : digestOf(entry)
    if ((verb === 'encrypt' || digest !== '') && digest !== is) return ['refused', 'changed', is]
    return this.#write(
      facts,
      record,
      userData.length > 0 ? userData : undefined,
      verb === 'encrypt' ? 'again' : 'encrypted',
      notify,
    )
  }

  #write(
    facts: Facts,
    text: Buffer,
    userData: Buffer | undefined,
    as: 'plain' | 'encrypted' | 'again',
    notify: Notify,
  ): ScriptAnswer {
    const { id, revision, hypervisors, sealedAt } = facts
    const hash = createHash('sha1').update(text).update('\n')
    const digest = hash.update(userData ?? '').digest('hex')
    const before = this.entries.get(id)
    const last = this.#last(id)?.revision
    const isTaken = as === 'again' ? revision > (last ?? revision) : revision === last && before?.digest !== digest
    if (last !== undefined && (revision < last || isTaken)) return ['refused', 'stale', String(last)]
    const claims = claimsOf(facts)
    for (const claim of claims) {
      const [network, range] = claim.split(' ') as [string, string]
      const owner = this.owner(network, range, id)
      if (owner !== undefined) return ['refused', 'address-owned', network, range, owner]
    }
    const highest = this.#highest([...hypervisors, ...(before?.hypervisors ?? [])])
    const order = as === 'plain' ? this.#next(highest) : this.#sane(facts.order)
    if (order <= highest) return ['refused', 'order', String(highest)]
    const record = as === 'plain' ? Buffer.from(text.toString().replace(/\}\s*$/, `,"order":${order}}`)) : text
    this.#give(order, highest)
    this.isInitialised = true
    this.tombstones.delete(id)
    this.entries.set(id, { order, revision, digest, record, userData, claims, hypervisors, sealedAt, isFaulty: false })
    this.#handOverReports(id, before?.hypervisors ?? [], hypervisors)
    for (const name of new Set([...hypervisors, ...(before?.hypervisors ?? [])])) notify(name, id)
    const verdict = before?.digest === digest ? 'unchanged' : 'published'
    return [verdict, String(revision), String(order), ...(sealedAt === undefined ? [] : [sealedAt])]
  }

  #remove([id, given, sealed]: [string, string?, string?], nowMs: number, notify: Notify): ScriptAnswer {
    const before = this.entries.get(id)
    const last = this.#last(id)
    if (last === undefined && given === undefined) return ['absent']
    const current = last?.revision ?? 0
    const revision = given === undefined ? (before === undefined ? current : current + 1) : Number(given)
    if (revision < current) return ['refused', 'stale', String(current)]
    const highest = this.#highest(before?.hypervisors ?? [])
    const order = this.#next(highest)
    this.#give(order, highest)
    const sealedAt = last?.sealedAt ?? sealed
    this.tombstones.set(id, { order, revision, sealedAt, expiresAtMs: nowMs + TOMBSTONE_MS })
    this.entries.delete(id)
    this.#handOverReports(id, before?.hypervisors ?? [], [])
    for (const name of new Set(before?.hypervisors)) notify(name, id)
    return [before === undefined ? 'unchanged' : 'removed', String(revision), String(order)]
  }

  get #now(): number {
    return Math.floor((this.#nowMs + this.clockMs) * 1_000)
  }

  /** The highest place that is known: the last one, that of the mark, and those that these hypervisors have announced. */
  #highest(hypervisors: readonly string[]): number {
    const said = [this.behind, ...hypervisors.map((name) => this.announced.get(name))]
    return Math.max(this.#sane(this.last), ...said.map((place) => this.#sane(place, MAX_SAID_AHEAD_MS)))
  }

  #next(highest: number): number {
    return Math.max(highest + 1, this.#now)
  }

  #give(order: number, highest: number): void {
    if (this.#sane(this.last) < highest) this.behind ??= highest
    this.last = order
  }

  /** A place; 0 if there is none, or if it is too far in the future. */
  #sane(place = 0, aheadMs = MAX_PLACE_AHEAD_MS): number {
    return place > this.#now + aheadMs * 1_000 ? 0 : place
  }

  #last(id: string): Entry | Tombstone | undefined {
    return this.entries.get(id) ?? this.tombstones.get(id)
  }

  #handOverReports(id: string, from: readonly string[], to: readonly string[]): void {
    for (const name of from) {
      if (to.includes(name)) continue
      const reports = this.reports.get(`${name} ${id}`)
      this.reports.delete(`${name} ${id}`)
      if (reports === undefined) continue
      for (const heir of to) if (!this.reports.has(`${heir} ${id}`)) this.reports.set(`${heir} ${id}`, reports)
    }
  }
}

/** A text that differs whenever the record, its user-data, or its place in the order does. */
export function digestOf({ digest, order }: Entry): string {
  return `${digest} ${order}`
}

function claimsOf({ interfaces }: Facts): string[] {
  return interfaces.flatMap(({ network = 'default', ipv4Addresses = [], ipv6Addresses = [], ipv6Prefixes = [] }) => {
    const addresses = [...ipv4Addresses, ...ipv6Addresses].map((address) => address.split('/')[0]!)
    return [...addresses, ...ipv6Prefixes].map((range) => `${network} ${range}`)
  })
}
