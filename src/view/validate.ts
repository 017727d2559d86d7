/**
 * Do a record and its user-data belong together?
 *
 * The gate to the view (invariant 3): what a store gave under an id becomes an instance with its bytes, or a list of faults.
 */
import type { Instance } from '../metadata/instance.ts'
import { parse, type Fault } from '../metadata/record.ts'
import { userDataFaults } from '../metadata/user-data.ts'
import type { Loaded } from '../store/source.ts'

/** A valid record with exactly the user-data that it tells of. `userData` is null where it tells of none, or is sealed: no host needs it then. */
export interface Assembled { readonly instance: Instance, readonly userData: Uint8Array | null, readonly digest: string }

/** What can be wrong with what a store holds, as a metric names it. */
export const FAULT_REASONS = ['unreadable', 'rejected', 'record', 'id', 'user-data'] as const
/** Why an id was not assembled; `faults` never hold values of the record. */
export interface AssemblyFault { readonly reason: typeof FAULT_REASONS[number], readonly faults: readonly Fault[] }

/** Checks everything about one loaded instance. `userDataMaxBytes` bounds the user-data. */
export function assemble(loaded: Exclude<Loaded, { kind: 'removed' | 'absent' }>, userDataMaxBytes: number): Assembled | AssemblyFault {
  if (loaded.kind !== 'record') return { reason: loaded.kind, faults: [{ path: '', message: loaded.reason }] }
  const parsed = parse(loaded.document)
  if (!parsed.ok) return { reason: 'record', faults: parsed.faults }
  const instance = parsed.value
  if (instance.id !== loaded.id) return { reason: 'id', faults: [{ path: '/id', message: `is not the id that it is stored under, ${loaded.id}` }] }
  const faults = userDataFaults(instance, loaded.userData, loaded.userDataSha256, userDataMaxBytes)
  if (faults.length > 0) return { reason: 'user-data', faults }
  return { instance, userData: instance.sealedAt === undefined ? loaded.userData : null, digest: loaded.digest }
}
