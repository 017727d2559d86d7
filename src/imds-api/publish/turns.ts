/**
 * The order in which the servers of the outbox are published, a batch at a time.
 *
 *   accounts take turns       each has one server in a batch before any has two: the one that has waited longest
 *   urgent changes go first   those of few servers (database/outbox.ts), such as a new server, before those of many,
 *                             such as a new name of a large group. No batch has both
 *   nothing starves           every MASS_TURN-th turn is for a change of many servers, if one waits
 *
 * Each process has its own turns. The order of the changes of one server does not matter here: a publish writes the
 * server as it is then.
 */
import { sql } from 'kysely'
import type { Db } from '../database/transaction.ts'

const MASS_TURN = 4
/** When a server whose publish failed is tried again. */
export const RETRY_SECONDS = 60

/** Servers that are published together. `isUrgent`: their changes are of few servers. */
export interface PublishBatch {
  readonly ids: readonly string[]
  readonly isUrgent: boolean
}

/** The turns of one process. `most`: the most servers of a batch. */
export class PublishTurns {
  readonly #db: Db
  readonly #most: number
  /** The account that was last in a batch. */
  readonly #last = { urgent: '', mass: '' }
  #count = 0

  constructor(db: Db, most: number) {
    this.#db = db
    this.#most = most
  }

  /**
   * The servers that are published next; undefined: none waits, except those of `except`. `onlyUrgent`: changes of many
   * servers get no turn.
   */
  async next(except: readonly string[], onlyUrgent: boolean): Promise<PublishBatch | undefined> {
    this.#count += 1
    const waiting = await this.#kinds()
    const order = this.#count % MASS_TURN === 0 ? [false, true] : [true, false]
    for (const isUrgent of order.filter((urgent) => waiting.has(urgent) && (urgent || !onlyUrgent))) {
      const ids = await this.#take(except, isUrgent)
      if (ids.length > 0) return { ids, isUrgent }
    }
    return undefined
  }

  /** Lets the servers whose publish failed wait for a turn again, if it is time. */
  async admitRetries(): Promise<void> {
    // A locked row is being published. A time that is later than any that was set is from before the clock was set back.
    await sql`
      update outbox set retry_at = null
      where id in (
        select id from outbox where retry_at <= now() or retry_at > now() + make_interval(secs => ${RETRY_SECONDS})
        for update skip locked)`.execute(this.#db)
  }

  /** Which kinds of changes wait, or are being published. To plan the search for accounts takes ten times as long. */
  async #kinds(): Promise<ReadonlySet<boolean>> {
    const first = (isUrgent: boolean) => sql`(
      select urgent from outbox where urgent = ${sql.lit(isUrgent)} and retry_at is null order by account_id limit 1)`
    const { rows } = await sql<{ kinds: (boolean | null)[] }>`
      select array[${first(true)}, ${first(false)}] as kinds`.execute(this.#db)
    return new Set(rows[0]!.kinds.filter((urgent) => urgent !== null))
  }

  /**
   * Takes servers of one kind. The accounts are found one after the other in the index outbox_turns, so this reads at
   * most `most` rows of each of `most` accounts, and those of `except`.
   */
  async #take(except: readonly string[], isUrgent: boolean): Promise<string[]> {
    const kind = isUrgent ? 'urgent' : 'mass'
    const waits = sql`retry_at is null and urgent = ${sql.lit(isUrgent)}`
    const most = sql.lit(this.#most)
    const first = (accounts: ReturnType<typeof sql>) =>
      sql`(select account_id from outbox where ${waits} and ${accounts} order by account_id limit 1)`
    const { rows } = await sql<{ server_id: string; account_id: string }>`
      with recursive
        after as (
          select ${first(sql`account_id > ${this.#last[kind]}`)} as account_id
          union all select ${first(sql`account_id > after.account_id`)} from after where account_id is not null),
        before as (
          select ${first(sql`account_id <= ${this.#last[kind]}`)} as account_id
          union all select ${first(sql`account_id > before.account_id and account_id <= ${this.#last[kind]}`)}
            from before where account_id is not null),
        accounts as (
          (select 1 as lap, account_id from after where account_id is not null limit ${most})
          union all (select 2, account_id from before where account_id is not null limit ${most})
          limit ${most})
      select server_id, account_id from accounts cross join lateral (
        select server_id, row_number() over (order by id) as position from (
          select server_id, id from outbox
          where ${waits} and outbox.account_id = accounts.account_id and server_id <> all(${[...except]})
          order by id limit ${most}) as oldest) as waiting
      group by server_id, account_id, lap
      order by min(position), lap, account_id limit ${most}`.execute(this.#db)
    const last = rows.at(-1)
    if (last !== undefined) this.#last[kind] = last.account_id
    return rows.map((row) => row.server_id)
  }
}
