/** What the guest of a server has reported: its claims, which nothing verifies. */
import { sql } from 'kysely'
import Type from 'typebox'
import { accountOf } from '../auth/caller.ts'
import { OWNS_ID } from '../changes/handshake.ts'
import { noSuch, refuse } from '../model/refusal.ts'
import { formatTime } from '../model/time.ts'
import { idOf } from './kit/lists.ts'
import type { Members } from './kit/members.ts'
import { Time } from './kit/schemas.ts'
import type { ResourceParts } from './kit/parts.ts'

const GuestReport = Type.Object(
  {
    name: Type.String({ examples: ['boot'] }),
    text: Type.String({ examples: ['done'] }),
    received_at: Time,
  },
  { title: 'GuestReport' },
)

export function addGuestReports(
  { path, resource: { kind, tags, params } }: Members,
  { server, db, reports }: Pick<ResourceParts, 'server' | 'db' | 'reports'>,
): void {
  server.get(
    `${path}/reports`,
    {
      schema: {
        operationId: 'listGuestReports',
        summary: 'List what the guest of a server has reported',
        description: "An extension: the guest's claims, which nothing verifies. Empty if it may not report.",
        tags,
        params,
        response: { 200: Type.Array(GuestReport) },
      },
    },
    async (request) => {
      const id = idOf(request)
      const { rows } = await sql<{ may_report: boolean }>`
        select coalesce(metadata_options->>'reports' = 'enabled' and ${OWNS_ID}, false) as may_report
        from servers where id = ${id} and account_id = ${accountOf(request)}`.execute(db)
      if (rows[0] === undefined) throw noSuch(kind, id)
      if (!rows[0].may_report) return []
      request.share.leave() // the store may hang
      const reported = await reports(id).catch(() => {
        throw refuse('service_unavailable', 'the store of the region does not answer: try again')
      })
      return [...(reported?.byName ?? [])].map(([name, { text, receivedAt }]) => {
        return { name, text, received_at: formatTime(receivedAt) }
      })
    },
  )
}
