/**
 * Reads the journal from the state directory at a start: all of it or nothing; only its torn end may be missing.
 *
 * A journal that can never be served is deleted, since it may have user-data. One of another owner or key, or of
 * another time, stays until the first change of the view, which replaces it.
 */
import { accessSync, closeSync, constants, existsSync, readdirSync, rmSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Reports } from '../../metadata/reports.ts'
import { openRegularFileSync } from '../../runtime/regular-file.ts'
import type { Log } from '../../runtime/log-codes.ts'
import type { View } from '../view/view.ts'
import type { Disk } from './disk.ts'
import { changesOf, checkOf, type Comparison, type JournalChange } from './encoding.ts'
import { JournalReader } from './journal.ts'
import type { StaleMark } from './stale-mark.ts'
import { leftFiles, type StateKeys, type StateOwner } from './state-files.ts'
import { malformed, Mismatch, RejectedJournal } from './unserved-journal.ts'

/** The view as the last daemon left it. */
export interface Restored {
  /** What makes the view: see replay. None if the journal is not served. */
  readonly changes: readonly JournalChange[]
  /** Time since it was compared with the store; negative if the clock was set back; undefined: nothing is served. */
  readonly ageMs: number | undefined
  /** A resync had completed for this view, so it lacks no instance. */
  readonly isComplete: boolean
  /** The journal on the disk. `unserved`: it stays until the view changes. */
  readonly journal: 'served' | 'unserved' | 'none'
}

interface RestoreParts {
  readonly disk: Disk
  /** Of the journal. */
  readonly path: string
  readonly stale: StaleMark
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly maxAgeMs: number
  readonly nowMs: number
  readonly log: Log
}

/** Reads the journal. Never rejects. */
export async function restoreView(parts: RestoreParts): Promise<Restored> {
  const { disk, path, log } = parts
  const facts: Record<string, unknown> = { path } // for the log
  try {
    return (await restore(parts, facts)) ?? nothing('none')
  } catch (error) {
    const reason = (error as Error).message
    if (error instanceof RejectedJournal)
      return nothing((await reject(disk, path, { ...facts, reason }, log)) ? 'none' : 'unserved')
    log.warn(
      { code: 'journal-not-served', ...facts, ...(error instanceof Mismatch ? { reason } : { err: error }) },
      error instanceof Mismatch
        ? 'the journal of the view is not served, and stays where it is until the store has records of this ' +
            'hypervisor; guests get 503 until then'
        : 'the journal of the view cannot be read, or the state directory cannot be written; ' +
            'guests get 503 until the store answers',
    )
    return nothing('unserved')
  }
}

function nothing(journal: 'unserved' | 'none'): Restored {
  return { changes: [], ageMs: undefined, isComplete: false, journal }
}

/** Adds to `facts` what is known of the journal. Undefined: there is none. */
async function restore(
  { disk, path, stale, owner, keys, maxAgeMs, nowMs, log }: RestoreParts,
  facts: Record<string, unknown>,
): Promise<Restored | undefined> {
  const directory = dirname(path)
  const left = leftFiles(existsSync(directory) ? readdirSync(directory) : [])
  const found = statSync(path, { throwIfNoEntry: false })
  if (left.length === 0 && found === undefined) return undefined
  await disk.makeDirectory(path) // rejects without the lock
  // also a directory
  for (const name of left) rmSync(join(directory, name), { force: true, recursive: true })
  if (found === undefined) return undefined
  facts['bytes'] = found.size
  accessSync(directory, constants.W_OK)
  if (stale.isSet)
    throw new RejectedJournal('the last daemon served more than it has, and could neither write nor delete')
  const { changes, compared, lostBytes } = await readChanges(path, owner, keys)
  const ageMs = nowMs - compared.atMs
  facts['ageSeconds'] = Math.round(ageMs / 1000)
  if (ageMs > maxAgeMs)
    throw new Mismatch('it is older than IMDS_JOURNAL_MAX_AGE_SECONDS, by the clock of this hypervisor')
  // Its age is unknown. A clock that is behind by less, such as by a time zone, stops no guest.
  if (ageMs < -maxAgeMs)
    throw new Mismatch(
      'it is from the future by more than IMDS_JOURNAL_MAX_AGE_SECONDS: the clock of this hypervisor is behind',
    )
  await disk.syncDirectory(path) // else a power failure could take back the name of what is served
  if (lostBytes > 0)
    log.warn(
      { code: 'journal-torn', path, lostBytes },
      'the end of the journal is torn: the daemon was killed, or lost power, while it wrote. ' +
        'The next resync reads what was lost',
    )
  return { changes, ageMs, isComplete: compared.isComplete, journal: 'served' }
}

/** Reads a journal, and changes nothing. `compared`: the last comparison in it. Rejects as JournalReader throws. */
export async function readChanges(
  path: string,
  owner: StateOwner,
  keys: StateKeys,
): Promise<Pick<Restored, 'changes'> & { readonly compared: Comparison; readonly lostBytes: number }> {
  const fd = openRegularFileSync(path, 'refuse')
  try {
    const reader = new JournalReader(fd, owner, keys)
    const check = await checkOf(reader.header()['schema'])
    const changes: JournalChange[] = []
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) changes.push(...changesOf(frame, check))
    const compared = changes.findLast((change) => change.kind === 'compared')
    if (compared === undefined) throw malformed() // a journal gets its name with one
    return { changes, compared, lostBytes: reader.lostBytes }
  } finally {
    closeSync(fd)
  }
}

/** Makes the changes of a journal in an empty view. `restoreReports`: called for the reports of an instance. */
export function replay(
  changes: readonly JournalChange[],
  view: View,
  restoreReports: (id: string, reports: Reports) => void,
): void {
  for (const change of changes) {
    switch (change.kind) {
      case 'replace':
        view.replace(change.record)
        break
      case 'remove':
        view.remove(change.id, change.order)
        break
      case 'freed':
        view.restoreFreed(change.ranges)
        break
      case 'unconfirmed':
        view.setUnconfirmed(change.ranges)
        break
      case 'reported':
        restoreReports(change.id, change.reports)
        break
      case 'compared':
        view.advance(change.floor)
    }
  }
}

/** Deletes a journal that can never be served. True if it is gone. */
async function reject(disk: Disk, path: string, facts: object, log: Log): Promise<boolean> {
  try {
    await disk.remove(path)
    await disk.syncDirectory(path)
    log.warn(
      { code: 'journal-rejected', ...facts },
      'the journal of the view was rejected and deleted; guests get 503 until the store answers',
    )
    return true
  } catch (error) {
    log.warn(
      { code: 'journal-not-deleted', ...facts, err: error },
      'the journal of the view was rejected and cannot be deleted: delete it, it may hold user-data; ' +
        'guests get 503 until the store answers',
    )
    return false
  }
}
