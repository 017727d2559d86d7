/** Checks a record with its user-data before a publish. The store checks its revision and its addresses later. */
import type { Instance } from '../metadata/instance.ts'
import type { Parsed } from '../metadata/parsed.ts'
import { parse, sizeFaults, type Fault } from '../metadata/record.ts'
import { sha256, userDataFaults } from '../metadata/user-data.ts'
import { fillUserData, type UserDataChange } from './user-data.ts'

/** A record without faults: the complete document and what it parses to. */
export interface CheckedRecord {
  readonly instance: Instance
  readonly document: unknown
}

/** What a record is checked against. `region`: the region that it must name; undefined: any. */
export interface CheckLimits {
  readonly region: string | undefined
  readonly userDataMaxBytes: number
}

/** Checks an untrusted document and its user-data (undefined: unknown, not checked), and reports every fault. */
export function checkRecord(
  untrusted: unknown,
  userData: Exclude<UserDataChange, 'keep'> | undefined,
  { region, userDataMaxBytes }: CheckLimits,
): Parsed<CheckedRecord, Fault> {
  const bytes = userData === 'none' ? undefined : userData
  const digest = bytes && sha256(bytes)
  const document = fillUserData(untrusted, bytes, digest)
  const parsed = parse(document)
  if (!parsed.ok) return parsed
  const { value: instance } = parsed
  const ofUserData = userData === undefined ? [] : userDataFaults(instance, bytes, digest, userDataMaxBytes)
  const faults = [...regionFaults(instance, region), ...sizeFaults(document), ...ofUserData]
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value: { instance, document } }
}

function regionFaults({ region: named }: Instance, region: string | undefined): readonly Fault[] {
  return region === undefined || named === region
    ? []
    : [{ path: '/region', message: `must be ${region}, the region of this store` }]
}
