/** The encoding of an instance and of a change, in snapshots and journals. */
import { frozen, RECORD_FORM, type Instance } from '../../metadata/instance.ts'
import { storedForm, type Reports } from '../../metadata/reports.ts'
import type { ViewChange } from '../view/change.ts'
import type { ValidRecord } from '../view/validate.ts'
import { RejectedFile } from './snapshot-input.ts'

const LF = Buffer.from('\n')
const NONE = Buffer.alloc(0)

/** A line of JSON. */
export function lineOf(value: object): Buffer {
  return Buffer.from(`${JSON.stringify(value)}\n`)
}

/** An instance of a snapshot. `reports`: what its guest has reported, if anything; never in a journal. */
export interface SavedInstance extends ValidRecord {
  readonly reports?: Reports | undefined
}

/** The bytes of a change, in parts. */
export function encodeChange(change: ViewChange): Uint8Array[] {
  return change.kind === 'remove' ? [lineOf({ removed: change.id })] : encodeInstance(change.record)
}

/** The bytes of an instance, in parts. */
export function encodeInstance({ instance, userData, digest, reports }: SavedInstance): Uint8Array[] {
  return [
    lineOf({
      instance,
      digest: digest ?? '',
      userDataBytes: userData?.length ?? null,
      reports: reports && storedForm(reports),
    }),
    userData ?? NONE,
    LF,
  ]
}

/** Builds an instance from its parts in a file. Throws a RejectedFile if its document is not valid. */
export type Restore = (document: unknown, digest: unknown, userData: Uint8Array | undefined) => ValidRecord

/**
 * How the documents of a file are read. Documents of this version's schema are not validated again, so that a start need
 * not load the schema's library. Documents of another schema are validated, and lose their digests, so that the first
 * resync reads all records again.
 */
export async function restoreOf(schema: unknown): Promise<Restore> {
  const parse = schema === RECORD_FORM ? undefined : (await import('../../metadata/record.ts')).parseStored
  return (document, digest, userData) => {
    const parsed = parse === undefined ? ({ ok: true, value: frozen(document as Instance) } as const) : parse(document)
    if (!parsed.ok || typeof digest !== 'string') throw new RejectedFile('it has an invalid record')
    return { instance: parsed.value, userData, digest: parse === undefined ? digest : undefined }
  }
}
