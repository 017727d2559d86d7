/** How instances and changes are encoded in snapshots and journals. */
import { parseJson } from '../../runtime/json.ts'
import { RECORD_FORM, type Instance, type NetworkRange } from '../../metadata/instance.ts'
import { parseReports, storedForm, type Reports } from '../../metadata/reports.ts'
import type { ViewChange } from '../view/change.ts'
import type { ValidRecord } from '../view/validate.ts'
import { Mismatch, torn } from './unserved-file.ts'

const LF = Buffer.from('\n')
const NONE = Buffer.alloc(0)

export function lineOf(value: object): Buffer {
  return Buffer.from(`${JSON.stringify(value)}\n`)
}

/** An instance of a snapshot, or a record of a journal. */
export interface SavedInstance extends ValidRecord {
  /** What its guest has reported, if anything; in a journal it is a change of its own. */
  readonly reports?: Reports | undefined
  /** Its ranges that are unconfirmed (view.ts), if any; in a journal they follow from the changes. */
  readonly unconfirmed?: readonly NetworkRange[] | undefined
}

/** The bytes of a change, in parts. */
export function encodeChange(change: ViewChange): Uint8Array[] {
  if (change.kind === 'replace') return encodeInstance(change.record)
  if (change.kind === 'unconfirmed') return [lineOf({ unconfirmed: change.ranges })]
  if (change.kind === 'reported') return [lineOf({ reported: change.id, reports: storedForm(change.reports) })]
  return [lineOf({ removed: change.id, order: change.order })]
}

export function encodeInstance(saved: SavedInstance): Uint8Array[] {
  const { instance, userData, digest, order, lost, reports, unconfirmed } = saved
  return [
    lineOf({
      instance,
      digest: digest ?? '',
      order,
      ...(lost.length > 0 && { lost }),
      userDataBytes: userData?.length ?? null,
      reports: reports && storedForm(reports),
      unconfirmed,
    }),
    userData ?? NONE,
    LF,
  ]
}

/** An instance as a file has it. Only the form of the file is checked: its MAC says that a daemon wrote it. */
export interface EncodedInstance extends Pick<SavedInstance, 'order' | 'lost' | 'unconfirmed' | 'reports'> {
  readonly document: unknown
  readonly digest: unknown
  readonly userData: Buffer | undefined
}

/** Reads encoded bytes. Its methods throw a RejectedFile if the bytes have another form. */
export class EncodedReader {
  readonly #bytes: Buffer
  #position = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  get position(): number {
    return this.#position
  }

  get isAtEnd(): boolean {
    return this.#position === this.#bytes.length
  }

  line(): Readonly<Record<string, unknown>> {
    const end = this.#bytes.indexOf(LF, this.#position)
    if (end === -1) throw torn()
    const line = objectOf(this.#bytes.subarray(this.#position, end))
    this.#position = end + 1
    return line
  }

  /** The instance on a line, with its user-data, which follows the line. */
  instance({ instance, userDataBytes, ...rest }: Readonly<Record<string, unknown>>): EncodedInstance {
    const length = userDataBytes === null ? 0 : userDataBytes
    if (typeof length !== 'number' || !Number.isInteger(length) || length < 0) throw torn()
    const [start, end] = [this.#position, this.#position + length]
    if (this.#bytes[end] !== LF[0]) throw torn()
    this.#position = end + 1
    // A copy, because a part would keep all bytes in memory.
    const userData = userDataBytes === null ? undefined : Buffer.from(this.#bytes.subarray(start, end))
    // files of before there was an order have none
    const { digest, order = 0, lost = [], reports, unconfirmed } = rest as Partial<EncodedInstance>
    return { document: instance, digest, order, lost, userData, reports: reportsOf(reports), unconfirmed }
  }
}

/** The reports in a line; undefined if it has none, or if they are not valid in this version. */
function reportsOf(value: unknown): Reports | undefined {
  return value === undefined ? undefined : parseReports(JSON.stringify(value))
}

/** The object that a text in JSON describes. Throws a RejectedFile for another text. */
export function objectOf(text: Buffer): Readonly<Record<string, unknown>> {
  const value = parseJson(text.toString('utf8'))
  if (typeof value !== 'object' || value === null) throw torn()
  return value as Record<string, unknown>
}

export type EncodedChange =
  | Exclude<ViewChange, { kind: 'replace' | 'reported' }>
  | ({ readonly kind: 'replace' } & EncodedInstance)
  | { readonly kind: 'reported'; readonly id: string; readonly reports: Reports | undefined }

/** One line of each kind of change. */
interface EncodedLine {
  readonly instance?: unknown
  readonly removed?: string
  readonly order?: number
  readonly unconfirmed?: readonly NetworkRange[]
  readonly reported?: string
  readonly reports?: unknown
}

/** The changes of a group, as they were written. Throws a RejectedFile if it has another form. */
export function* changesOf(group: Buffer): Generator<EncodedChange> {
  const reader = new EncodedReader(group)
  while (!reader.isAtEnd) {
    const line = reader.line()
    const { instance, removed, order = 0, unconfirmed, reported, reports } = line as EncodedLine
    if (instance !== undefined) yield { kind: 'replace', ...reader.instance(line) }
    else if (removed !== undefined) yield { kind: 'remove', id: removed, order }
    else if (unconfirmed !== undefined) yield { kind: 'unconfirmed', ranges: unconfirmed }
    else if (reported !== undefined) yield { kind: 'reported', id: reported, reports: reportsOf(reports) }
    else throw torn()
  }
}

/** Builds an instance from its parts in a file. Throws a Mismatch if its document is not valid in this version. */
export type Restore = (encoded: EncodedInstance) => ValidRecord

/**
 * How the documents of a file are read. Documents of this version's schema are not validated again, so that a start need
 * not load the schema's library. Documents of another schema are validated, and lose their digests, so that the first
 * resync reads all records again.
 */
export async function restoreOf(schema: unknown): Promise<Restore> {
  const parse = schema === RECORD_FORM ? undefined : (await import('../../metadata/record.ts')).parseStored
  return ({ document, digest, order, lost, userData }) => {
    const parsed = parse === undefined ? ({ ok: true, value: document as Instance } as const) : parse(document)
    if (typeof digest !== 'string') throw torn()
    if (!parsed.ok) throw new Mismatch('it has a record that is not valid in this version')
    return { instance: parsed.value, userData, digest: parse === undefined ? digest : undefined, order, lost }
  }
}
