/**
 * Decides whether the store as a whole can be used, and names the likely cause if it cannot. Pure.
 *
 * If more than UNUSABLE_SHARE of the records are faulty, the likely cause is a wrong record key or an incompatible
 * version, not single bad records.
 */
import type { InvalidRecord } from './validate.ts'

/** Above this share of faulty records the daemon is not ready, which stops a rolling restart. */
const UNUSABLE_SHARE = 0.9

/**
 * Why the store as a whole cannot be used. `reasons` counts the faulty records by reason; `cause` is the likely one,
 * with its remedy.
 */
export interface StoreProblem {
  readonly named: number
  readonly faulty: number
  readonly reasons: Readonly<Partial<Record<InvalidRecord['reason'], number>>>
  readonly cause: string
}

const INCOMPATIBLE_VERSION =
  'the control plane writes records that this version of imds cannot read: ' +
  'upgrade imds, or go back to the previous release of the control plane'
const CAUSES: Readonly<Record<InvalidRecord['reason'], string>> = {
  rejected:
    'the record keys are not those of the publishers: ' +
    'put the right keys into IMDS_RECORD_KEYS_FILE and restart imds. ' +
    'If the records are not encrypted yet, run `imdsctl encrypt --from-plain`',
  unreadable:
    'the records are encrypted and IMDS_RECORD_KEYS_FILE is not set (set it and restart imds), ' +
    'or they were lost or overwritten in the store (publish them again)',
  record: INCOMPATIBLE_VERSION,
  id: INCOMPATIBLE_VERSION,
  'user-data':
    'the user-data does not belong to its records, or is larger than IMDS_USER_DATA_MAX_BYTES: ' +
    'set it to the limit of the publishers, or publish again',
  order:
    'the records were published more than a day in the future by the clock of this hypervisor: ' +
    'correct its clock, or that of Redis and of the publishers, and publish them again',
}

/**
 * The problem of a store that names `named` instances for this hypervisor; `faults` has the reason of each faulty one.
 * Undefined if there is no problem.
 */
export function storeProblem(named: number, faults: readonly InvalidRecord['reason'][]): StoreProblem | undefined {
  if (named === 0 || faults.length <= UNUSABLE_SHARE * named) return undefined
  const reasons: Partial<Record<InvalidRecord['reason'], number>> = {}
  for (const reason of faults) reasons[reason] = (reasons[reason] ?? 0) + 1
  const [most = 'record'] = (Object.keys(reasons) as InvalidRecord['reason'][]).sort(
    (a, b) => reasons[b]! - reasons[a]!,
  )
  return { named, faulty: faults.length, reasons, cause: CAUSES[most] }
}

export function formatStoreProblem({ named, faulty, cause }: StoreProblem): string {
  return (
    `${faulty} of ${named} records that the store has for this hypervisor cannot be used. ` + `Likely cause: ${cause}`
  )
}
