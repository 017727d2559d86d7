/** Validates a loaded record together with its user-data. Only what passes here enters the view (invariant 3). */
import type { Instance, NetworkRange } from '../../metadata/instance.ts'
import { parse, type Fault } from '../../metadata/record.ts'
import { userDataFaults } from '../../metadata/user-data.ts'
import type { Loaded } from '../../store/source.ts'

/** A range that an instance has lost. `order`: of the publish that claimed it last. */
export interface LostRange extends NetworkRange {
  readonly order: number
}

/**
 * A valid record with the user-data that it describes. `userData` is undefined if there is none, or if it is sealed.
 */
export interface ValidRecord {
  readonly instance: Instance
  readonly userData: Uint8Array | undefined
  readonly digest: string | undefined
  /** Of its publish, in the one order of the region; 0: published before there was an order. */
  readonly order: number
  /** The ranges that later instances have claimed, which `instance` is without (later-claims.ts). */
  readonly lost: readonly LostRange[]
}

/** Reasons for a fault, as the metric names them. */
export const FAULT_REASONS = ['unreadable', 'rejected', 'record', 'id', 'user-data', 'order'] as const
/** Why a record is not valid; `faults` never contain values of the record. */
export interface InvalidRecord {
  readonly reason: (typeof FAULT_REASONS)[number]
  readonly faults: readonly Fault[]
}

export type Validated = { readonly ok: true; readonly value: ValidRecord } | ({ readonly ok: false } & InvalidRecord)

/** Validates one loaded instance. `userDataMaxBytes` bounds the user-data. */
export function validate(loaded: Exclude<Loaded, { kind: 'removed' | 'absent' }>, userDataMaxBytes: number): Validated {
  if (loaded.kind !== 'record') return invalid(loaded.kind, [{ path: '', message: loaded.reason }])
  const parsed = parse(loaded.document)
  if (!parsed.ok) return invalid('record', parsed.faults)
  const instance = parsed.value
  if (instance.id !== loaded.id)
    return invalid('id', [{ path: '/id', message: `is not the id that it is stored under, ${loaded.id}` }])
  const faults = userDataFaults(instance, loaded.userData, loaded.userDataSha256, userDataMaxBytes)
  if (faults.length > 0) return invalid('user-data', faults)
  return {
    ok: true,
    value: {
      instance,
      userData: instance.sealedAt === undefined ? loaded.userData : undefined,
      digest: loaded.digest,
      order: loaded.order ?? 0,
      lost: [],
    },
  }
}

function invalid(reason: InvalidRecord['reason'], faults: readonly Fault[]): Validated {
  return { ok: false, reason, faults }
}
