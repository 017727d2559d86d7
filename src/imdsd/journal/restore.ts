/**
 * Reads the view from the state directory at a start: the snapshot, then its journals in their order. It restores all of
 * them or nothing; only the torn end of a journal may be missing.
 *
 * Files that can never be served are deleted, since they may have user-data. Files of another owner or key, or of
 * another time, stay until the first change of the view; then persistence.ts sets them aside.
 */
import { accessSync, constants, rmSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Log } from '../../runtime/log-codes.ts'
import type { Reports } from '../../metadata/reports.ts'
import { namesIn } from '../../runtime/systemd.ts'
import { changesOf, restoreOf, type Restore, type SavedInstance } from './encoding.ts'
import { DISK } from './disk.ts'
import { View, type Removals } from '../view/view.ts'
import { readJournal, type Journal } from './journal.ts'
import { checkOwner, readSnapshot } from './snapshot.ts'
import type { StaleMark } from './stale-mark.ts'
import {
  deleteFiles,
  deleteOldPrevious,
  journalGenerations,
  journalPath,
  leftFiles,
  type StateKeys,
  type StateOwner,
} from './state-files.ts'
import { Mismatch, PlainSnapshot, RejectedFile, Undecryptable } from './unserved-file.ts'

/**
 * What is on the disk after the start. `served`: this view. `unserved`: files that stay until the view changes.
 * `plain`: the same, but they are deleted then, because the daemon has record keys. `none`: nothing.
 */
export type FilesFound = 'served' | 'unserved' | 'plain' | 'none'

/** The view as the last daemon left it. */
export interface Restored {
  readonly instances: readonly SavedInstance[]
  readonly removals: Removals
  /** Time since it was compared with the store; negative if the clock was set back since; undefined: nothing is served. */
  readonly ageMs: number | undefined
  /** A resync had completed for this view, so it lacks no instance. */
  readonly isComplete: boolean
  /** This daemon would write the snapshot with the same keys and schema. */
  readonly isCurrent: boolean
  readonly files: FilesFound
  /** The last MAC of the journals, and their size; undefined: nothing is served. */
  readonly end: { readonly mac: string; readonly bytes: number; readonly hasChanges: boolean } | undefined
  readonly snapshotBytes: number
  /** No journal on the disk has a higher one. */
  readonly generation: number
}

interface RestoreParts {
  /** Of the snapshot. */
  readonly path: string
  readonly stale: StaleMark
  /** What the journal gives to an instance is unconfirmed at first (view.ts). */
  readonly waitsForRules: boolean
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly maxAgeMs: number
  readonly nowMs: number
  readonly log: Log
}

/** Reads the view. Never throws. */
export async function restoreView(parts: RestoreParts): Promise<Restored> {
  const { path, log } = parts
  const facts: Record<string, unknown> = { path } // for the log
  try {
    return (await restoreFiles(parts, facts)) ?? unserved(path, 'none')
  } catch (error) {
    const reason = (error as Error).message
    if (error instanceof RejectedFile)
      return unserved(path, (await reject(path, { ...facts, reason }, log)) ? 'none' : 'unserved')
    const cause = error instanceof Mismatch ? { reason } : { err: error }
    log.warn({ code: 'snapshot-not-served', ...facts, ...cause }, consequenceOf(error))
    return unserved(path, error instanceof PlainSnapshot ? 'plain' : 'unserved')
  }
}

function unserved(path: string, files: FilesFound): Restored {
  return {
    instances: [],
    removals: { floor: 0, removed: new Map() },
    ageMs: undefined,
    isComplete: false,
    isCurrent: false,
    files,
    end: undefined,
    snapshotBytes: 0,
    generation: generationsBeside(path).at(-1) ?? 0,
  }
}

function consequenceOf(error: unknown): string {
  if (error instanceof Undecryptable)
    return 'the snapshot cannot be decrypted; it stays where it is, and guests get 503 until the store answers'
  if (error instanceof PlainSnapshot)
    return (
      'the snapshot is not served, and is deleted when the store has records of this hypervisor; ' +
      'guests get 503 until then'
    )
  if (error instanceof Mismatch)
    return (
      'the snapshot is not served, and stays where it is until the store has records of this hypervisor; ' +
      'guests get 503 until then'
    )
  return 'the snapshot cannot be read, or the state directory cannot be written; guests get 503 until the store answers'
}

/** Reads the files. Adds to `facts` what is known of them. Undefined: there is no snapshot. */
async function restoreFiles(
  { path, stale, owner, keys, waitsForRules, maxAgeMs, nowMs, log }: RestoreParts,
  facts: Record<string, unknown>,
): Promise<Restored | undefined> {
  // also a directory
  for (const name of leftFiles(namesIn(dirname(path))))
    rmSync(join(dirname(path), name), { force: true, recursive: true })
  await deleteOldPrevious(DISK, path, maxAgeMs, nowMs)
  const found = statSync(path, { throwIfNoEntry: false })
  if (found === undefined) {
    await deleteFiles(DISK, path)
    return undefined
  }
  const { size, mtimeMs } = found
  const ageMs = nowMs - mtimeMs
  Object.assign(facts, { bytes: size, ageSeconds: Math.round(ageMs / 1000) })
  accessSync(dirname(path), constants.W_OK)
  if (stale.isSet) throw new RejectedFile('the last daemon served more than it has, and could neither write nor delete')
  if (ageMs > maxAgeMs)
    throw new Mismatch('it is older than IMDS_SNAPSHOT_MAX_AGE_SECONDS, by the clock of this hypervisor')
  // Its age is unknown. A clock that is behind by less, such as by a time zone, stops no guest.
  if (ageMs < -maxAgeMs)
    throw new Mismatch(
      'it is from the future by more than IMDS_SNAPSHOT_MAX_AGE_SECONDS: the clock of this hypervisor is behind',
    )
  const { torn, oldest, ...view } = await readView(path, owner, keys, waitsForRules, (open) => open())
  // else a power failure could take back a name that is served, but not what follows: a later journal, or a deletion
  await DISK.syncDirectory(path)
  for (const generation of generationsBeside(path))
    if (generation < oldest) rmSync(journalPath(path, generation), { force: true })
  for (const end of torn)
    log.warn(
      { code: 'journal-torn', ...end },
      'the end of the journal is torn: the daemon was killed, or lost power, while it wrote. ' +
        'The next resync reads what was lost',
    )
  return { ...view, ageMs, files: 'served', snapshotBytes: size, generation: generationsBeside(path).at(-1) ?? 0 }
}

/**
 * What files on the disk have. `torn`: the journals whose end is torn. `oldest`: the first generation that is not
 * obsolete.
 */
export interface ReadView extends Pick<Restored, 'instances' | 'removals' | 'isComplete' | 'isCurrent' | 'end'> {
  readonly torn: readonly { readonly path: string; readonly lostBytes: number }[]
  readonly oldest: number
}

/**
 * Reads a snapshot and its journals, and changes nothing. Opens each file in a call of `as`. Rejects as readSnapshot and
 * readJournal do.
 */
export async function readView(
  path: string,
  owner: StateOwner,
  keys: StateKeys,
  waitsForRules: boolean,
  as: <T>(open: () => T) => T,
): Promise<ReadView> {
  const snapshot = await as(() => readSnapshot(path, owner, keys))
  const { isComplete, isCurrent, journal: first } = snapshot
  const view = new View({}, () => 0, waitsForRules)
  fillView(view, snapshot)
  const reports = new Map(snapshot.instances.map((one) => [one.instance.id, one.reports]))
  const generations = as(() => generationsBeside(path)).filter((generation) => generation >= first.generation)
  if (generations[0] !== first.generation)
    throw new Mismatch(`its journal ${journalPath(path, first.generation)} is missing`)
  const torn: { path: string; lostBytes: number }[] = []
  let end: Restored['end']
  for (const generation of generations) {
    const file = journalPath(path, generation)
    const use = async (journal: Journal): Promise<Restored['end']> => {
      const { header, start } = journal
      checkOwner(header, owner)
      const follows = end === undefined ? start.mac === first.mac : header['after'] === end.mac
      if (!follows || start.generation !== generation)
        throw new RejectedFile('its journals do not belong together: one is damaged, missing, or of another time')
      const hasGroups = applyTo(view, reports, journal.groups, await restoreOf(header['schema']))
      const { mac, bytes, lostBytes } = journal.end()
      if (lostBytes > 0) torn.push({ path: file, lostBytes })
      return { mac, bytes: (end?.bytes ?? 0) + bytes, hasChanges: end?.hasChanges === true || hasGroups }
    }
    end = await as(() => readJournal(file, owner.hypervisor ?? '', keys, use))
  }
  const instances = savedInstances(view, (id) => reports.get(id))
  const { removals } = view
  return { instances: [...instances], removals, isComplete, isCurrent, end, torn, oldest: first.generation }
}

/** Applies groups of changes. True if there was one. An instance keeps its reports as long as it is not removed. */
function applyTo(
  view: View,
  reports: Map<string, Reports | undefined>,
  groups: Iterable<Buffer>,
  restore: Restore,
): boolean {
  let hasGroups = false
  for (const group of groups) {
    hasGroups = true
    for (const change of changesOf(group)) {
      if (change.kind === 'replace') view.replace(restore(change))
      else if (change.kind === 'unconfirmed') view.setUnconfirmed(change.ranges)
      else if (change.kind === 'reported') reports.set(change.id, change.reports)
      else {
        view.remove(change.id, change.order)
        reports.delete(change.id)
      }
    }
  }
  return hasGroups
}

/** What a snapshot has of a view. `reportsOf`: what the guest of an instance has reported. */
export function savedInstances(
  view: View,
  reportsOf: (id: string) => Reports | undefined,
): IteratorObject<SavedInstance> {
  return view.instances().map(({ record }) => {
    const { id } = record.instance
    const reports = reportsOf(id)
    const unconfirmed = view.unconfirmedOf(id)
    return { ...record, ...(reports && { reports }), ...(unconfirmed.length > 0 && { unconfirmed }) }
  })
}

/** Fills a view with what was saved. */
export function fillView(view: View, { instances, removals }: Pick<Restored, 'instances' | 'removals'>): void {
  view.advance(removals.floor)
  for (const [id, order] of removals.removed) view.remove(id, order)
  for (const one of instances) view.replace(one)
  view.setUnconfirmed(instances.flatMap(({ unconfirmed = [] }) => unconfirmed))
}

/** Deletes files that can never be served. True if they are gone. */
async function reject(path: string, facts: object, log: Log): Promise<boolean> {
  try {
    await deleteFiles(DISK, path)
    log.warn(
      { code: 'snapshot-rejected', ...facts },
      'the snapshot was rejected and deleted; guests get 503 until the store answers',
    )
    return true
  } catch (error) {
    log.warn(
      { code: 'snapshot-not-deleted', ...facts, err: error },
      'the snapshot was rejected and cannot be deleted: delete it, it may hold user-data; ' +
        'guests get 503 until the store answers',
    )
    return false
  }
}

function generationsBeside(path: string): number[] {
  return journalGenerations(namesIn(dirname(path)))
}
