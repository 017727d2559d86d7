/**
 * The marks of a region in its store: drained hypervisors, the imds-api that publishes it, and the id of its database.
 */
import { parseJson } from '../runtime/json.ts'
import type { BehindMark } from './order.ts'

/** A daemon announces itself every 30 s. After this time its last figures say nothing about now. */
export const RECENT_MS = 90_000

/** True if a daemon reported so lately (RFC 3339) that it probably runs. */
export function isRecent(seenAt: string, nowMs: number): boolean {
  return nowMs - Date.parse(seenAt) < RECENT_MS
}

/**
 * A hypervisor whose daemon has connected to the store: its version, the number of its instances, and when it last
 * reported (RFC 3339). `lagSeconds`: how long the oldest change that it knew of had waited then; absent: not reported.
 * `duplicate`: another daemon announces itself with this name. `recordKeys`: the names of its record keys; absent: an
 * older daemon.
 */
export interface AnnouncedHypervisor {
  readonly name: string
  readonly version: string
  readonly instances: number
  readonly lagSeconds?: number
  readonly seenAt: string
  readonly duplicate?: true
  readonly recordKeys?: readonly string[]
}

/** An imds-api that publishes a region: its version, and when it was last seen (RFC 3339). */
export interface ControlPlane {
  readonly version: string
  readonly seenAt: string
}

/**
 * Whether a store still has everything that imds-api published. `database`: as Fleet.database. `history`: another text
 * when the store may have lost changes, because its server was restarted or replaced. `complete`: the history in which
 * everything was published; undefined: never, or the store was emptied. `last`: the last place in the order of the
 * region (order.ts); 0: none; undefined: the store does not know. `behind`: the mark that the region has lost changes;
 * undefined: it has none.
 */
export interface StoreState {
  readonly last: number | undefined
  readonly behind: BehindMark | undefined
  readonly database: string | undefined
  readonly history: string
  readonly complete: string | undefined
}

/** The marks of hypervisors, and who publishes the region. With files every change of a mark rejects. */
export interface Fleet {
  /** The hypervisors that are drained, by name, each with the time since (RFC 3339). */
  drained(): Promise<ReadonlyMap<string, string>>
  /** Marks a hypervisor as drained. False: it was drained already, and keeps its time. */
  drain(name: string, since: string): Promise<boolean>
  /** Removes the mark. False: there was none. */
  undrain(name: string): Promise<boolean>
  /** Deletes the announcement and the mark of a hypervisor that is gone. False: it had neither. */
  forget(name: string): Promise<boolean>
  /** The imds-api that published this region in the last 30 days, and overwrites other writers; undefined: none. */
  controlPlane(): Promise<ControlPlane | undefined>
  /** Announces an imds-api, and makes the marks those of its database. */
  announceControlPlane(controlPlane: ControlPlane, drained: ReadonlyMap<string, string>): Promise<void>
  /** The id of the database whose region this is; undefined: no imds-api has published it. */
  database(): Promise<string | undefined>
  /** Makes this the region of a database. Without `replaces`, another database keeps it. Returns whose it is now. */
  setDatabase(database: string, replaces: boolean): Promise<string>
  state(): Promise<StoreState>
  /** The last numbers that the sequences of the database are known to have given, by their names. */
  numbers(): Promise<ReadonlyMap<string, number>>
  /** Notes numbers. Those of other names stay. */
  noteNumbers(numbers: ReadonlyMap<string, number>): Promise<void>
  /** Notes that everything is published, or waits to be, in this history. */
  markComplete(history: string): Promise<void>
  /**
   * Marks the region: it has lost changes, since it had this place in the order before. A mark of a later place stays.
   * Until it is cleared, whatever reads the store before it writes is refused (StoreBehind).
   */
  markBehind(order: number): Promise<void>
  /** Clears a mark once the region is published again. Another mark stays. */
  clearBehind(mark: BehindMark): Promise<void>
}

/** Reads an announcement of an imds-api. */
export function parseControlPlane(text: string): ControlPlane {
  const { version, seenAt } = parseFields(text)
  return { version: typeof version === 'string' ? version : '', seenAt: typeof seenAt === 'string' ? seenAt : '' }
}

/** The fields of an announcement; none if it is no JSON object. Other programs may have written any shape. */
export function parseFields(text: string): Partial<Record<string, unknown>> {
  return parseJson(text) ?? {}
}
