/** What a client sees of the reports of a guest: its claims, which nothing verifies. */
import Type from 'typebox'
import { NO_REPORTS, type Reports } from '../../metadata/reports.ts'

/** Reads the reports of a server. Undefined: it has none, or the store does not answer in time. */
export type ReadReports = (id: string) => Promise<Reports | undefined>

const CLAIM = "An extension: the guest's claim, which nothing verifies."

/** The fields of a server, each of which is absent until the guest has reported it. */
export const REPORTED_FIELDS = {
  boot_status: Type.Optional(
    Type.Object(
      {
        phase: Type.String({ examples: ['done'] }),
        time: Type.Optional(Type.String({ description: 'By the clock of the guest.' })),
        received_at: Type.String({ format: 'date-time' }),
      },
      { description: CLAIM },
    ),
  ),
  ssh_host_keys: Type.Optional(Type.Array(Type.String(), { description: `${CLAIM} Each is a type and base64.` })),
  attributes: Type.Optional(Type.Record(Type.String(), Type.String(), { description: CLAIM })),
}

export function reportedFields(reports: Reports | undefined): Readonly<Record<keyof typeof REPORTED_FIELDS, unknown>> {
  const { boot, sshHostKeys, attributes } = reports ?? NO_REPORTS
  const values = [...attributes].map(([name, { value }]) => [name, value] as const)
  return {
    boot_status: boot && { phase: boot.phase, time: boot.time, received_at: boot.receivedAt },
    ssh_host_keys: sshHostKeys && [...sshHostKeys.keys],
    attributes: values.length > 0 ? Object.fromEntries(values) : undefined,
  }
}
