/** How changes of the view are encoded in the journal (journal.ts has the format). */
import { parseJson } from '../../runtime/json.ts'
import { RECORD_FORM, type Instance, type NetworkRange } from '../../metadata/instance.ts'
import { parseReports, storedForm } from '../../metadata/reports.ts'
import type { ViewChange } from '../view/change.ts'
import type { LostRange, ValidRecord } from '../view/validate.ts'
import { malformed, Mismatch } from './unserved-journal.ts'

const LF = Buffer.from('\n')
const NONE = Buffer.alloc(0)

/**
 * When the view was compared with the store, in milliseconds since 1970. `isComplete`: it lacks no instance; false: it
 * never was compared, and the time is that of the start. `floor`: of the view's removals.
 */
export interface Comparison {
  readonly kind: 'compared'
  readonly atMs: number
  readonly isComplete: boolean
  readonly floor: number
}

/** Ranges that instances had left before a rewrite. */
interface Freed {
  readonly kind: 'freed'
  readonly ranges: readonly LostRange[]
}

/** What a line of the journal says. */
export type JournalChange = ViewChange | Freed | Comparison

export function lineOf(value: object): Buffer {
  return Buffer.from(`${JSON.stringify(value)}\n`)
}

/** The bytes of a change, in parts. */
export function encodeChange(change: JournalChange): Uint8Array[] {
  switch (change.kind) {
    case 'replace': {
      const { instance, userData, digest, order, lost } = change.record
      const line = { instance, digest: digest ?? '', order, lost, userDataBytes: userData?.length ?? null }
      return [lineOf(line), userData ?? NONE, LF]
    }
    case 'remove':
      return [lineOf({ removed: change.id, order: change.order })]
    case 'freed':
      return [lineOf({ freed: change.ranges })]
    case 'unconfirmed':
      return [lineOf({ unconfirmed: change.ranges })]
    case 'reported':
      return [lineOf({ reported: change.id, reports: storedForm(change.reports) })]
    case 'compared':
      return [lineOf({ compared: change.atMs, complete: change.isComplete, floor: change.floor })]
  }
}

/** The object that a text in JSON describes. Throws a RejectedJournal for another text. */
export function objectOf(text: Buffer): Readonly<Record<string, unknown>> {
  const value = parseJson(text.toString('utf8'))
  if (typeof value !== 'object' || value === null) throw malformed()
  return value as Record<string, unknown>
}

/** The fields of the lines. Only their form is checked: the MAC of a frame says that a daemon wrote it. */
interface Line {
  readonly instance?: unknown
  readonly digest?: string
  readonly lost?: ValidRecord['lost']
  readonly userDataBytes?: unknown
  readonly removed?: string
  readonly order?: number
  readonly freed?: readonly LostRange[]
  readonly unconfirmed?: readonly NetworkRange[]
  readonly reported?: string
  readonly reports?: unknown
  readonly compared?: number
  readonly complete?: boolean
  readonly floor?: number
}

/** Checks the document of a record. Throws a Mismatch if it is not valid in this version. */
export type CheckRecord = (record: ValidRecord) => ValidRecord

/** The changes of a frame. Throws a RejectedJournal if it has another form. */
export function* changesOf(frame: Buffer, check: CheckRecord): Generator<JournalChange> {
  for (let position = 0; position < frame.length;) {
    const end = frame.indexOf(LF, position)
    if (end === -1) throw malformed()
    const line: Line = objectOf(frame.subarray(position, end))
    position = end + 1
    const { instance, removed, order = 0, freed, unconfirmed, reported, compared } = line
    if (instance !== undefined) {
      const { userDataBytes, digest, lost = [] } = line
      const length = userDataBytes === null ? 0 : userDataBytes
      if (typeof length !== 'number' || !Number.isInteger(length) || length < 0) throw malformed()
      const after = position + length
      if (frame[after] !== LF[0]) throw malformed()
      // a copy, because a part would keep the whole frame in memory
      const userData = userDataBytes === null ? undefined : Buffer.from(frame.subarray(position, after))
      position = after + 1
      yield { kind: 'replace', record: check({ instance: instance as Instance, digest, order, lost, userData }) }
    } else if (removed !== undefined) yield { kind: 'remove', id: removed, order }
    else if (freed !== undefined) yield { kind: 'freed', ranges: freed }
    else if (unconfirmed !== undefined) yield { kind: 'unconfirmed', ranges: unconfirmed }
    else if (reported !== undefined) {
      const reports = parseReports(JSON.stringify(line.reports))
      if (reports !== undefined) yield { kind: 'reported', id: reported, reports } // not valid in this version
    } else if (compared !== undefined)
      yield { kind: 'compared', atMs: compared, isComplete: line.complete === true, floor: line.floor ?? 0 }
    else throw malformed()
  }
}

/**
 * How the documents of a journal are checked. Those of this version's schema are not validated again, so that a start
 * need not load the schema's library. Those of another one are validated, and lose their digests, so that the first
 * resync reads all records again.
 */
export async function checkOf(schema: unknown): Promise<CheckRecord> {
  if (schema === RECORD_FORM) return (record) => record
  const { parse } = await import('../../metadata/record.ts')
  return (record) => {
    const parsed = parse(record.instance)
    if (!parsed.ok) throw new Mismatch('it has a record that is not valid in this version')
    return { ...record, instance: parsed.value, digest: undefined }
  }
}
