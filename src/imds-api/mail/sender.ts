/**
 * Sends the invitations of pending collaborations that have no `invited_at`, and then sets `invited_at`. So the
 * database is the queue: no request waits for mail, a kill loses no invitation, and a request that clears the column
 * has the invitation sent again.
 *
 * A sender takes an invitation by setting `send_at`, in a short transaction: two processes never send one at the same
 * time, and a change of the collaboration never waits. After a kill, another sender takes it CLAIM_SECONDS later. While the
 * database refuses to record a sent mail, it also refuses to let a sender take one, so no mail is repeated without end.
 *
 * An invitation that cannot be sent is tried again without end, and others do not wait for it. `send_fault` says why, also
 * without a mail server: the condition invitation-not-sent names it.
 */
import { sql, type RawBuilder } from 'kysely'
import { buildEachMinute } from '../../limits/each-minute.ts'
import type { Log } from '../../runtime/log-codes.ts'
import { PeriodicTask } from '../../runtime/periodic-task.ts'
import { isUnsent } from '../changes/invitations.ts'
import type { Db } from '../database/transaction.ts'
import type { DatabaseReport } from '../http/database-errors.ts'
import { composeInvitation, type Invitation } from './invitation.ts'
import type { SendMail } from './smtp.ts'

export type InvitationOutcome = 'sent' | 'failed'

/** Dependencies of the sender. `mail`: undefined if there is no mail server, so invitations are not sent. */
export interface InvitationSenderParts {
  readonly db: Db
  readonly mail: { readonly send: SendMail; readonly invitationUrl: string } | undefined
  readonly count: (outcome: InvitationOutcome) => void
  readonly databaseReport: Pick<DatabaseReport, 'report'>
  readonly log: Log
}

const POLL_MS = 1_000
/** How long a mail may take. A mail server may take long for each of its answers. */
const SEND_SECONDS = 120
/** How long it is taken: longer, so that nobody else sends it meanwhile. */
const CLAIM_SECONDS = SEND_SECONDS + 10
/** The longest pause before the next attempt: it is as long as the invitation has waited. */
const MAX_PAUSE = '15 min'
const pause = sql`least(${MAX_PAUSE}::interval,
  greatest('1 s', now() - coalesce(resends[cardinality(resends)], created_at)))`
/** False while another process sends it, or until its next attempt. A later time is from before the clock was set back. */
const isDue = sql`(send_at between now() and now() + ${MAX_PAUSE}::interval) is not true`

/** An invitation that this process sends. `until`: its `send_at`, unless it was changed meanwhile. */
type Taken = Invitation & { readonly until: string }

/**
 * A stop ends the connection to the mail server. An invitation that is being sent is sent again after the next start.
 */
export class InvitationSender extends PeriodicTask {
  readonly #parts: InvitationSenderParts
  /** The accounts whose invitations were tried since none was due, the one that was served longest ago first. */
  readonly #served = new Set<string>()

  constructor(parts: InvitationSenderParts) {
    const send = async (signal: AbortSignal) => {
      while (!signal.aborted) {
        const next = await this.#take()
        if (next === undefined) return
        await this.#send(next, signal)
      }
    }
    const { mail, db, databaseReport, log } = parts
    const mayWarn = buildEachMinute(() => performance.now())
    super(mail === undefined ? () => noteNoServer(db) : send, POLL_MS, (error) => {
      if (!databaseReport.report(error) && mayWarn('invitations-not-read'))
        log.warn(
          { code: 'invitations-not-read', reason: error.message },
          'invitations cannot be read from the database: retrying',
        )
    })
    this.#parts = parts
  }

  /** The oldest invitation of the account that was served longest ago: so one with many does not delay the others. */
  async #take(): Promise<Taken | undefined> {
    const served = [...this.#served]
    const {
      rows: [taken],
    } = await sql<Taken>`
      update collaborations set send_at = now() + make_interval(secs => ${CLAIM_SECONDS})
      from accounts where accounts.id = account_id and collaborations.id = (
        select id from collaborations where ${isUnsent} and ${isDue}
        order by array_position(${served}::text[], account_id) nulls first, created_at, id
        limit 1 for update skip locked)
      returning collaborations.id, email, send_at::text as until,
        json_build_object('id', account_id, 'name', accounts.name) as account,
        coalesce((select name from users where id = inviter_id), 'Somebody') as inviter,
        exists (select from users where lower(email_address) = lower(email)) as "hasUser"`.execute(this.#parts.db)
    if (taken === undefined) this.#served.clear()
    else {
      this.#served.delete(taken.account.id)
      this.#served.add(taken.account.id)
    }
    return taken
  }

  async #send(taken: Taken, signal: AbortSignal): Promise<void> {
    const { db, mail, count, log } = this.#parts
    const end = (values: RawBuilder<unknown>) =>
      sql`update collaborations set ${values} where id = ${taken.id} and send_at::text = ${taken.until}`.execute(db)
    try {
      const inTime = AbortSignal.any([signal, AbortSignal.timeout(SEND_SECONDS * 1_000)])
      await mail!.send(composeInvitation(taken, mail!.invitationUrl), inTime)
    } catch (error) {
      if (!signal.aborted) count('failed')
      await end(
        signal.aborted
          ? sql`send_at = null`
          : sql`send_at = now() + ${pause}, send_fault = ${(error as Error).message}`,
      )
      return
    }
    count('sent')
    log.info({ collaboration: taken.id }, 'the invitation was sent')
    await end(sql`send_at = null, send_fault = null, invited_at = now()`)
  }
}

/** They are due as soon as there is a mail server. */
async function noteNoServer(db: Db): Promise<void> {
  const fault = 'IMDS_API_SMTP is not set'
  await sql`
    update collaborations set send_fault = ${fault}, send_at = null
    where ${isUnsent} and send_fault is distinct from ${fault}`.execute(db)
}
