/**
 * Sends the invitations of pending collaborations that have no `invited_at`, and then sets `invited_at`. So the
 * database is the queue: no request waits for mail, a kill loses no invitation, and a request that clears the column
 * has the invitation sent again.
 *
 * Two processes never send one invitation at the same time, because a sender holds its advisory lock. The lock does not
 * delay changes of the collaboration. If the mail server has accepted a mail and the database cannot record it, the
 * sender only records it later. A kill in between sends the mail again, and so does another imds-api, which does not
 * know that it was accepted.
 *
 * An invitation that cannot be sent is tried again with back-off, without end, and others do not wait for it. Without a
 * mail server, the log has a warning for each invitation and each resend.
 */
import { sql } from 'kysely'
import type { Log } from '../../runtime/log-codes.ts'
import { PeriodicTask } from '../../runtime/periodic-task.ts'
import { isUnsent } from '../changes/invitations.ts'
import { setValues } from '../changes/own-rows.ts'
import { tryLock } from '../database/advisory-locks.ts'
import type { Tx, Db } from '../database/transaction.ts'
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

/** An invitation that could not be sent or recorded, and why: without a mail address. */
export interface Postponed {
  readonly id: string
  readonly reason: string
}

/**
 * An invitation that could not be sent or recorded. `acceptedVersion`: xmin of its row when the mail
 * server accepted its mail.
 */
interface Attempt {
  readonly reason: string
  readonly acceptedVersion: string | undefined
  readonly delayMs: number
  /** By performance.now(): the wall clock may be set back. */
  readonly atMs: number
}

/** How long PostgreSQL waits for a process that sends a mail. A mail server may take long for each of its answers. */
const MAX_SEND_DURATION = '10min'
const POLL_MS = 1_000
const BATCH = 100
/** The most postponed invitations that the status page shows. */
const MAX_SHOWN = 50
const FIRST_BACKOFF_MS = 1_000
const MAX_BACKOFF_MS = 900_000
/**
 * How long a postponed invitation is remembered after it was due. Untried by then: answered, or sent by another
 * process.
 */
const FORGET_MS = 3_600_000

/**
 * PostgreSQL's version of the row of a collaboration. Every change of the row, such as a resend, gives it another one.
 */
const ROW_VERSION = sql<string>`collaborations.xmin::text`.as('version')

/** True if a user has the invited address. The mail may say so, because it goes to this address. */
const HAS_USER =
  sql<boolean>`exists (select from users where lower(users.email_address) = lower(collaborations.email))`.as('has_user')

/**
 * A stop ends the connection to the mail server. An invitation that is being sent is sent again after the next start.
 */
export class InvitationSender extends PeriodicTask {
  readonly #parts: InvitationSenderParts
  #postponed = new Map<string, Attempt>()
  /** The accounts whose invitations were tried since none was due, the one that was served longest ago first. */
  readonly #served = new Set<string>()
  /** Without a mail server: the waiting invitations that were reported, with the versions of their rows. */
  #reported = new Map<string, string>()
  #isReadFailing = false

  constructor(parts: InvitationSenderParts) {
    const sendOrReport = async (signal: AbortSignal) => {
      await (parts.mail === undefined ? this.#report() : this.#sendBatch(signal))
      this.#isReadFailing = false
    }
    super(sendOrReport, POLL_MS, (error) => {
      if (parts.databaseReport.report(error)) return
      if (!this.#isReadFailing)
        parts.log.warn(
          { code: 'invitations-not-read', reason: error.message },
          'invitations cannot be read from the database: retrying',
        )
      this.#isReadFailing = true
    })
    this.#parts = parts
  }

  /** The first of the invitations whose next attempt is planned. */
  postponed(): readonly Postponed[] {
    return [...this.#postponed].slice(0, MAX_SHOWN).map(([id, { reason }]) => ({ id, reason }))
  }

  /** Asks again after each mail: an invitation of another account may have come meanwhile. */
  async #sendBatch(signal: AbortSignal): Promise<void> {
    const tried: string[] = []
    while (!signal.aborted && tried.length < BATCH) {
      const next = await this.#nextDue(tried)
      if (next === undefined) return
      tried.push(next.id)
      this.#served.delete(next.account_id)
      this.#served.add(next.account_id)
      await this.#send(next.id, signal)
    }
  }

  /**
   * The invitation to send now, without those that were tried: the oldest one of the account that was served longest
   * ago, so an account with many does not delay the others.
   */
  async #nextDue(tried: readonly string[]): Promise<{ readonly id: string; readonly account_id: string } | undefined> {
    const now = performance.now()
    // answered or sent since
    this.#postponed = new Map([...this.#postponed].filter(([, { atMs }]) => atMs + FORGET_MS > now))
    const later = [...this.#postponed].filter(([, { atMs }]) => atMs > now).map(([id]) => id)
    const next = await this.#waiting()
      .select(['id', 'account_id'])
      .where(sql<boolean>`id <> all(${[...later, ...tried]})`)
      .orderBy(sql`array_position(${[...this.#served]}::text[], account_id)`, (order) => order.asc().nullsFirst())
      .orderBy('created_at')
      .orderBy('id')
      .limit(1)
      .executeTakeFirst()
    if (next === undefined && tried.length === 0) this.#served.clear()
    return next
  }

  #waiting() {
    return this.#parts.db.selectFrom('collaborations').where(isUnsent)
  }

  async #report(): Promise<void> {
    const rows = await this.#waiting().select(['id', ROW_VERSION]).orderBy('created_at').orderBy('id').execute()
    for (const { id, version } of rows) {
      if (this.#reported.get(id) !== version)
        this.#parts.log.warn(
          { code: 'mail-not-configured', collaboration: id },
          'the invitation is not sent, since IMDS_API_SMTP is not set. It is sent once it is set',
        )
    }
    this.#reported = new Map(rows.map(({ id, version }) => [id, version]))
  }

  /** Sends an invitation, unless another process is sending it, or it was sent or answered before. */
  async #send(id: string, signal: AbortSignal): Promise<void> {
    const { db, mail, count, log } = this.#parts
    let acceptedVersion = this.#postponed.get(id)?.acceptedVersion
    try {
      const isRecorded = await db.transaction().execute(async (tx) => {
        // the mail server may take longer than a publish; the lock is only that of the invitation
        await sql`set local idle_in_transaction_session_timeout = '60s'`.execute(tx)
        const invitation = await lockInvitation(tx, id)
        if (invitation === undefined) return false
        if (acceptedVersion !== invitation.version) {
          try {
            await mail!.send(composeInvitation(invitation, mail!.invitationUrl), signal)
          } catch (error) {
            if (signal.aborted) return false
            count('failed')
            this.#postpone(id, (error as Error).message, undefined)
            return false
          }
          acceptedVersion = invitation.version
          count('sent')
          log.info({ collaboration: id }, 'the invitation was sent')
        }
        await setValues(tx, 'collaborations', id, { invited_at: new Date() })
        return true
      })
      if (isRecorded) this.#postponed.delete(id)
    } catch (error) {
      if (acceptedVersion === undefined) throw error
      this.#postpone(id, (error as Error).message, acceptedVersion)
    }
  }

  /** Plans the next attempt. */
  #postpone(id: string, reason: string, acceptedVersion: string | undefined): void {
    const before = this.#postponed.get(id)
    if (acceptedVersion !== undefined && before?.reason !== reason)
      this.#parts.log.warn(
        { code: 'invitation-not-recorded', collaboration: id, reason },
        'the invitation was sent, and the database cannot record it. Retrying',
      )
    const delayMs = Math.min(MAX_BACKOFF_MS, before === undefined ? FIRST_BACKOFF_MS : before.delayMs * 2)
    this.#postponed.set(id, { reason, acceptedVersion, delayMs, atMs: performance.now() + delayMs })
  }
}

/**
 * Locks an invitation until the end of the transaction. Undefined: another process has the lock, or there is nothing to
 * send any more.
 */
async function lockInvitation(tx: Tx, id: string): Promise<(Invitation & { readonly version: string }) | undefined> {
  const { rows } = await sql<{ locked: boolean }>`
    select ${tryLock('invitation', id)} as locked,
      set_config('idle_in_transaction_session_timeout', ${MAX_SEND_DURATION}, true)`.execute(tx)
  if (!rows[0]!.locked) return undefined
  const row = await tx
    .selectFrom('collaborations')
    .innerJoin('accounts', 'accounts.id', 'collaborations.account_id')
    .leftJoin('users', 'users.id', 'collaborations.inviter_id')
    .select([
      'collaborations.email',
      'accounts.id as account_id',
      'accounts.name as account_name',
      'users.name as inviter',
      ROW_VERSION,
      HAS_USER,
    ])
    .where('collaborations.id', '=', id)
    .where(isUnsent)
    .executeTakeFirst()
  if (row === undefined) return undefined
  const { email, account_id, account_name, inviter, has_user: hasUser, version } = row
  return { id, email, account: { id: account_id, name: account_name }, inviter: inviter ?? undefined, hasUser, version }
}
