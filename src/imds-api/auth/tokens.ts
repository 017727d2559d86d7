/**
 * Access tokens: opaque and random. The database has their SHA-256. The result of a check is cached for CACHE_MS, so a
 * revocation takes effect in every process within that time, and at once in the process that made it (`clearCache`).
 */
import { sql, type Insertable } from 'kysely'
import { LRUCache } from 'lru-cache'
import { runPrepared } from '../database/prepared.ts'
import { deleteInBatches } from '../database/purge.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Db } from '../database/transaction.ts'
import { limitsOf, type ClientLimits } from '../model/client-limits.ts'
import { SCOPES_OF_GROUP } from '../model/scopes.ts'
import type { Lookups } from './lookups.ts'
import { digest, newToken } from './secrets.ts'
import { deleteOldestTokens } from './token-families.ts'
import { addRow } from '../changes/own-rows.ts'
import { trustsServer } from '../changes/trusted-servers.ts'

/**
 * Whom a token authenticates, and its scopes: an API client, which acts for its account, or a user, who has signed in
 * with an application and names an account in each request.
 */
export type TokenHolder =
  | {
      readonly kind: 'client'
      readonly clientId: string
      readonly accountId: string
      /** The server that acts as the client. Undefined: a program that has its secret. */
      readonly serverId: string | undefined
      readonly scopes: readonly string[]
      readonly limits: ClientLimits
    }
  | { readonly kind: 'user'; readonly clientId: string; readonly userId: string; readonly scopes: readonly string[] }

export type TokenCheck =
  | { readonly kind: 'valid'; readonly tokenHolder: TokenHolder }
  | { readonly kind: 'expired' }
  | { readonly kind: 'unknown' }

/** The owner of a new token: an API client and its account, or a family of tokens (database/tables.ts). */
export type TokenOwner =
  | { readonly clientId: string; readonly accountId: string; readonly serverId?: string }
  | { readonly familyId: number }

const CACHE_MS = 1_000
const CACHE_SIZE = 10_000
/** How long an expired token is kept, so that its user learns that it has expired. */
export const EXPIRED_RETENTION_MS = 86_400_000
/** The most access tokens of one sign-in of a user. */
const MAX_FAMILY_ACCESS_TOKENS = 100

/**
 * Issues and checks access tokens. `now`: milliseconds since 1970. `steady`: milliseconds of a monotonic clock, for the
 * cache.
 */
export class AccessTokens {
  readonly #db: Db
  readonly #now: () => number
  readonly #steady: () => number
  readonly #lookups: Lookups
  readonly #cache: LRUCache<string, { readonly tokenHolder: TokenHolder; readonly expiresAtMs: number }>
  /** The checks that run, since a client may send many requests with one token at once. */
  readonly #running = new Map<string, Promise<TokenCheck>>()
  /** How often `clearCache` was called. The result of a check that began before the last call must not be cached. */
  #clears = 0

  constructor(db: Db, now: () => number, steady: () => number, lookups: Lookups) {
    this.#db = db
    this.#now = now
    this.#steady = steady
    this.#lookups = lookups
    this.#cache = new LRUCache({ max: CACHE_SIZE, ttl: CACHE_MS, ttlResolution: 0, perf: { now: steady } })
  }

  /**
   * Issues a token. The oldest tokens of its owner beyond the limit end: another process may accept one of them for
   * CACHE_MS more. `db`: the transaction in which it becomes valid.
   */
  async issue(db: Db, owner: TokenOwner, scopes: readonly string[], seconds: number): Promise<string> {
    const token = newToken()
    const values = { sha256: digest(token), scopes: [...scopes], expires_at: new Date(this.#now() + seconds * 1000) }
    if ('familyId' in owner) {
      await deleteOldestTokens(db, 'access_tokens', owner.familyId, MAX_FAMILY_ACCESS_TOKENS)
      await addRow(db, 'access_tokens', { ...values, family_id: owner.familyId })
    } else await insertForClient(db, owner, values)
    return token
  }

  /**
   * Checks a token. Unknown: also a token of a revoked client or family, or of a client that has moved to another
   * account, or of a server that its client does not trust any more. A token of a client has at most the present scopes of
   * the client, and expires with it. `address`: of its sender, canonical.
   */
  async check(token: string, address: string): Promise<TokenCheck> {
    const known = this.#cache.get(token)
    if (known !== undefined)
      return known.expiresAtMs > this.#now() ? { kind: 'valid', tokenHolder: known.tokenHolder } : { kind: 'expired' }
    const running = this.#running.get(token)
    if (running !== undefined) return running
    const check = this.#read(token, address).finally(() => {
      if (this.#running.get(token) === check) this.#running.delete(token)
    })
    this.#running.set(token, check)
    return check
  }

  /**
   * Locks the owner of a token, so that a revocation that comes later waits for the commit, and checks the token
   * without the cache.
   */
  async lock(tx: Tx, token: string, { kind, clientId }: TokenHolder): Promise<TokenCheck> {
    await (
      kind === 'client'
        ? sql`select from api_clients where id = ${clientId} for share`
        : sql`
            select from token_families
            where id = (select family_id from access_tokens where sha256 = ${digest(token)})
            for share`
    ).execute(tx)
    return (await this.#find(tx, token)).check
  }

  async #read(token: string, address: string): Promise<TokenCheck> {
    const start = this.#steady() // the cache counts from before the query, whose result may be old when it arrives
    const clears = this.#clears
    const { check, expiresAtMs } = await this.#lookups.run(address, () => this.#find(this.#db, token))
    if (check.kind === 'valid' && clears === this.#clears)
      this.#cache.set(token, { tokenHolder: check.tokenHolder, expiresAtMs }, { start })
    return check
  }

  async #find(db: Db, token: string): Promise<{ readonly check: TokenCheck; readonly expiresAtMs: number }> {
    const query = db
      .selectFrom('access_tokens')
      .leftJoin('api_clients', 'api_clients.id', 'access_tokens.client_id')
      .leftJoin('token_families', 'token_families.id', 'access_tokens.family_id')
      .select([
        'access_tokens.client_id',
        'access_tokens.account_id',
        'access_tokens.server_id',
        'access_tokens.scopes',
        'access_tokens.expires_at',
        'token_families.application_id',
        'token_families.user_id',
        'api_clients.permissions_group',
        'api_clients.read_only',
        'api_clients.expires_at as client_expires_at',
        'api_clients.allow_access',
      ])
      .where('access_tokens.sha256', '=', digest(token))
      .whereRef('access_tokens.account_id', 'is not distinct from', 'api_clients.account_id')
      .where('api_clients.revoked_at', 'is', null)
      .where('token_families.revoked_at', 'is', null)
      .where(sql<boolean>`(server_id is null or ${trustsServer(sql.ref('access_tokens.server_id'))})`)
    const [row] = await runPrepared(db, query)
    if (row === undefined) return { check: { kind: 'unknown' }, expiresAtMs: 0 }
    const { client_id, account_id, application_id, user_id, scopes, permissions_group: group } = row
    const tokenHolder: TokenHolder =
      client_id === null
        ? { kind: 'user', clientId: application_id!, userId: user_id!, scopes }
        : {
            kind: 'client',
            clientId: client_id,
            accountId: account_id!,
            serverId: row.server_id ?? undefined,
            scopes: SCOPES_OF_GROUP[group!].filter((scope) => scopes.includes(scope)),
            limits: limitsOf({
              read_only: row.read_only!,
              expires_at: row.client_expires_at,
              allow_access: row.allow_access!,
            }),
          }
    const clientEndsAtMs = tokenHolder.kind === 'client' ? tokenHolder.limits.expiresAtMs : Infinity
    const expiresAtMs = Math.min(row.expires_at.getTime(), clientEndsAtMs)
    return { check: expiresAtMs <= this.#now() ? { kind: 'expired' } : { kind: 'valid', tokenHolder }, expiresAtMs }
  }

  /** Empties the cache. Call it after every change that takes access away. */
  clearCache(): void {
    this.#clears++
    this.#cache.clear()
    this.#running.clear()
  }

  /** Deletes tokens that expired before a time. */
  async purge(keptSinceMs: number): Promise<void> {
    await deleteInBatches(this.#db, 'access_tokens', sql`expires_at < ${new Date(keptSinceMs)}`)
  }
}

/**
 * Inserts an access token of an API client, and deletes the oldest ones beyond the limit of the account. It is one
 * statement and locks no client, so requests at the same time do not wait for each other's commit: they may exceed the
 * limit until the next request.
 */
async function insertForClient(
  db: Db,
  { clientId, accountId, serverId }: Exclude<TokenOwner, { familyId: number }>,
  { sha256, scopes, expires_at }: Pick<Insertable<Tables['access_tokens']>, 'sha256' | 'scopes' | 'expires_at'>,
): Promise<void> {
  await sql`
    with ended as (
      delete from access_tokens where sha256 in (
        select sha256 from access_tokens where sha256 in (
          select sha256 from access_tokens where client_id = ${clientId} order by expires_at desc
          offset (select access_tokens_limit - 1 from accounts where id = ${accountId})
        ) for update skip locked
      )
    )
    insert into access_tokens (sha256, client_id, account_id, server_id, scopes, expires_at)
    values (${sha256}, ${clientId}, ${accountId}, ${serverId ?? null}, ${scopes}, ${expires_at})`.execute(db)
}
