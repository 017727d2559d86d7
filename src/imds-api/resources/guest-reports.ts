/** What a client sees of the reports of a guest: its claims, which nothing verifies. */
import Type from 'typebox'
import { NO_REPORTS, type Reports } from '../../metadata/reports.ts'

/** Reads the reports of a server. Undefined: it has none, or the store does not answer in time. */
export type ReadReports = (id: string) => Promise<Reports | undefined>

/** The field of a server that is absent until its guest has reported. */
export const REPORTED_FIELDS = {
  reports: Type.Optional(
    Type.Array(
      Type.Object({
        name: Type.String({ examples: ['boot'] }),
        text: Type.String({ examples: ['done'] }),
        received_at: Type.String({ format: 'date-time' }),
      }),
      { description: "An extension: the guest's claims, which nothing verifies." },
    ),
  ),
}

export function reportedFields(reports: Reports | undefined): Readonly<Record<keyof typeof REPORTED_FIELDS, unknown>> {
  const all = [...(reports ?? NO_REPORTS).byName].map(([name, { text, receivedAt }]) => ({
    name,
    text,
    received_at: receivedAt,
  }))
  return { reports: all.length > 0 ? all : undefined }
}
