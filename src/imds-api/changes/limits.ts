/** An account's limits and its use of them. The use is counted, never stored. */
import { sql, type RawBuilder, type Selectable } from 'kysely'
import type { AccountLimit } from '../model/account-limits.ts'
import { ALL_ROWS, ROWS, type ResourceLimitName } from '../model/resources.ts'
import { SERVER_ACTIONS } from '../model/server-actions.ts'
import { refuse } from '../model/refusal.ts'
import { runPrepared } from '../database/prepared.ts'
import { setOrigin, type ChangeOrigin } from './events.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'

/**
 * How many deleted servers, API clients and applications, and finished collaborations, of an account can still be read:
 * the newest. Otherwise an account that makes and deletes them could fill the database.
 */
export const MAX_KEPT_DELETED = 1000

/**
 * How many changes of servers of an account can wait to be published. One request may change all of its servers, so
 * an account could otherwise fill the database while the store is unreachable.
 */
export const MAX_UNPUBLISHED = 10_000
/** Without those of a rebuild, which the account has not caused. The index outbox_turns begins with `urgent`. */
const hasTooManyUnpublished = (accountId: string) => sql<boolean>`exists (
  select from outbox
  where account_id = ${accountId} and urgent in (true, false) and retry_at is null and not rebuild
  offset ${sql.lit(MAX_UNPUBLISHED)})`

/** `has_too_many_unpublished`: more than MAX_UNPUBLISHED. Absent without an origin. */
export type LockedAccount = Selectable<Tables['accounts']> & { readonly has_too_many_unpublished?: boolean }

/**
 * Locks an account until the end of the transaction. Other transactions can still insert rows that refer to it, such as
 * access tokens. Undefined: it was deleted. `origin`: what the events of the transaction name.
 */
export async function lockAccount(
  tx: Tx,
  accountId: string,
  origin?: ChangeOrigin,
): Promise<LockedAccount | undefined> {
  return tx
    .selectFrom('accounts')
    .selectAll()
    .$if(origin !== undefined, (query) =>
      query.select([setOrigin(origin!).as('origin'), hasTooManyUnpublished(accountId).as('has_too_many_unpublished')]),
    )
    .where('id', '=', accountId)
    .forNoKeyUpdate()
    .executeTakeFirst()
}

/** A limit that refuses. `used`: how many the account has. `of`: what it counts, in a refusal. */
interface CountedLimit {
  readonly used: (accountId: string) => RawBuilder<number>
  readonly of: string
  readonly remedy: string
}
/** `access_tokens_limit` refuses nothing: see auth/tokens.ts. */
type CountedLimitName = ResourceLimitName | Exclude<AccountLimit, 'access_tokens_limit'> | 'ram_limit'

const OF_RESOURCES = Object.fromEntries(
  ALL_ROWS.flatMap(({ plural, table, present = 'true', limit }) => {
    if (limit === undefined) return []
    const { counted = present, remedy = 'delete one first' } = limit
    const rule: CountedLimit = {
      ...{ of: plural, remedy },
      used: (id) => sql`select count(*) from ${sql.table(table!)} where account_id = ${id} and ${sql.raw(counted)}`,
    }
    return [[`${table!}_limit`, rule]]
  }),
) as Readonly<Record<ResourceLimitName, CountedLimit>>

const COUNTED_LIMITS: Readonly<Record<CountedLimitName, CountedLimit>> = {
  ...OF_RESOURCES,
  ram_limit: {
    of: 'MB of RAM in its servers',
    remedy: 'delete a server first',
    used: (id) => sql`
      select coalesce(sum(ram), 0) from servers join server_types on server_types.id = servers.server_type_id
      where servers.account_id = ${id} and ${sql.raw(ROWS.server.present)}`,
  },
  config_maps_bytes_limit: {
    of: 'bytes of config maps',
    remedy: 'delete or shorten one first',
    used: (id) => sql`select coalesce(sum(bytes), 0) from config_maps where account_id = ${id}`,
  },
  open_actions_limit: {
    of: 'actions without an outcome',
    remedy: 'try again when some have ended',
    used: (id) => sql`
      select count(*) from compute_actions join servers on servers.id = server_id
      where account_id = ${id} and finished_at is null and kind = any(${[...SERVER_ACTIONS]})`,
  },
}

/** What an account has of a limit, before a change. */
interface Use {
  readonly used: number
  readonly most: number
}

/**
 * Refuses a change that would exceed a limit by adding `added`, a positive number. Returns what the account has before.
 * The account must be locked.
 */
export async function refuseBeyondLimit(tx: Tx, accountId: string, limit: CountedLimitName, added = 1): Promise<Use> {
  const { used: countOf, of, remedy } = COUNTED_LIMITS[limit]
  const query = sql<Use>`
    select (${countOf(accountId)}) as used, ${sql.ref(limit)} as most from accounts where id = ${accountId}`
  const { used, most } = (await runPrepared(tx, query))[0]!
  if (used + added > most)
    throw refuse(
      'account_limit_reached',
      `the account has ${used} ${of}, and its limit is ${most}` +
        `${added === 1 ? '' : `: ${added} more are too much`}: ${remedy}`,
    )
  return { used, most }
}
