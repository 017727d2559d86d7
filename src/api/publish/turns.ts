/**
 * The order in which the servers of the outbox are published.
 *
 *   accounts take turns       each publishes one server at its turn, the one that has waited longest
 *   urgent changes go first   those of few servers (database/outbox.ts), such as a new server, before those of many,
 *                             such as a new name of a large group
 *   nothing starves           every MASS_TURN-th turn is for a change of many servers, if one waits
 *
 * Each process has its own turns. The order of the changes of one server does not matter here: a publish writes the
 * server as it is then.
 */
import { sql, type Kysely } from 'kysely'
import type { Tables } from '../database/tables.ts'

const MASS_TURN = 4

interface Waiting {
  readonly server_id: string
  readonly account_id: string
  readonly urgent: boolean
}

/** The turns of one process. */
export class Turns {
  readonly #db: Kysely<Tables>
  /** The account that had the last turn. */
  readonly #last = { urgent: '', mass: '' }
  #count = 0

  constructor(db: Kysely<Tables>) {
    this.#db = db
  }

  /** The server that is published next; undefined: none waits, except those of `except`. */
  async next(except: readonly string[]): Promise<string | undefined> {
    this.#count += 1
    const urgentFirst = this.#count % MASS_TURN !== 0
    const { urgent, mass } = this.#last
    const {
      rows: [row],
    } = await sql<Waiting>`
      ${first(except, 1, urgentFirst, sql`account_id > ${urgentFirst ? urgent : mass}`)}
      union all ${first(except, 2, urgentFirst, sql`true`)}
      union all ${first(except, 3, !urgentFirst, sql`account_id > ${urgentFirst ? mass : urgent}`)}
      union all ${first(except, 4, !urgentFirst, sql`true`)}
      order by choice limit 1`.execute(this.#db)
    if (row === undefined) return undefined
    this.#last[row.urgent ? 'urgent' : 'mass'] = row.account_id
    return row.server_id
  }

  /** Lets the servers whose publish failed wait for a turn again, if it is time. */
  async admitRetries(): Promise<void> {
    // A locked row is being published.
    await sql`
      update outbox set retry_at = null
      where id in (select id from outbox where retry_at <= now() for update skip locked)`.execute(this.#db)
  }
}

/**
 * The first row of a kind in the order of the accounts. Each of these queries reads one row of the index outbox_turns,
 * and those of `except`.
 */
function first(except: readonly string[], choice: number, isUrgent: boolean, accounts: ReturnType<typeof sql>) {
  return sql`(select ${sql.lit(choice)} as choice, server_id, account_id, urgent from outbox
    where retry_at is null and urgent = ${sql.lit(isUrgent)} and ${accounts} and server_id <> all(${[...except]})
    order by account_id, id limit 1)`
}
