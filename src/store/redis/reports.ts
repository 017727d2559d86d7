/** What a guest has reported, as its key in Redis has it (contract H9). */
import type { Redis } from 'ioredis'
import { boundRevisions, parseReports, MAX_REPORTS_BYTES, storedForm, type Reports } from '../../metadata/reports.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import type { Keys } from './keys.ts'

/** The longest value that is read. publish.lua has the same limit. */
export const MAX_REPORTS_VALUE_BYTES = MAX_REPORTS_BYTES + MAX_ENCRYPTION_OVERHEAD_BYTES

/**
 * The commands that read the reports of an instance on some hypervisors, with one byte more than allowed to find longer
 * ones.
 */
export function reportCommands(keys: Keys, id: string, hypervisors: readonly string[]): (string | number)[][] {
  return hypervisors.map((name) => ['getrangeBuffer', keys.reports(name, id), 0, MAX_REPORTS_VALUE_BYTES])
}

/** The valid reports among the replies. A hypervisor may have written anything. */
export function reportsOf(
  replies: readonly unknown[],
  id: string,
  cipher: RecordCipher | undefined,
  nowMs: number,
): Reports[] {
  return replies.flatMap((value) => {
    const reports = Buffer.isBuffer(value) ? decoded(value, id, cipher) : undefined
    return reports === undefined ? [] : [boundRevisions(reports, nowMs)]
  })
}

function decoded(value: Buffer, id: string, cipher: RecordCipher | undefined): Reports | undefined {
  if (value.length === 0 || value.length > MAX_REPORTS_VALUE_BYTES) return undefined
  const plain =
    cipher === undefined ? { kind: 'decrypted' as const, bytes: value } : cipher.decrypt('reports', id, value)
  return plain.kind === 'decrypted' ? parseReports(plain.bytes.toString()) : undefined
}

export async function saveReports(
  redis: Redis,
  key: string,
  id: string,
  reports: Reports,
  cipher: RecordCipher | undefined,
): Promise<void> {
  const bytes = Buffer.from(JSON.stringify(storedForm(reports)))
  await redis.set(key, cipher === undefined ? bytes : cipher.encrypt('reports', id, 0, bytes))
}
