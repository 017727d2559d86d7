/**
 * Access tokens: opaque, random, in the database as SHA-256. A token that was checked is remembered for CACHE_MS, so a revocation reaches every process
 * within that time.
 */
import type { Kysely } from 'kysely'
import { LRUCache } from 'lru-cache'
import type { Tables } from '../database/tables.ts'
import { digest, newToken } from './secrets.ts'

/** The client and the account that a token authenticates, and its scopes. */
export interface Caller { readonly clientId: string, readonly accountId: string, readonly scopes: readonly string[] }

/** The outcome of a check. */
export type TokenCheck = { readonly kind: 'valid', readonly caller: Caller } | { readonly kind: 'expired' } | { readonly kind: 'unknown' }

const CACHE_MS = 1_000
const CACHE_SIZE = 10_000
/** How long an expired token is kept, so that its user learns that it has expired. */
const KEEP_EXPIRED_MS = 86_400_000

/** Issues and checks access tokens. `now`: milliseconds since 1970. */
export class AccessTokens {
  readonly #tables: Kysely<Tables>
  readonly #now: () => number
  readonly #known = new LRUCache<string, { readonly caller: Caller, readonly expiresAtMs: number }>({ max: CACHE_SIZE, ttl: CACHE_MS })

  constructor(tables: Kysely<Tables>, now: () => number) {
    this.#tables = tables
    this.#now = now
  }

  /** Issues a token. */
  async issue({ clientId, accountId, scopes }: Caller, seconds: number): Promise<string> {
    const token = newToken()
    await this.#tables.insertInto('access_tokens')
      .values({
        sha256: digest(token), client_id: clientId, account_id: accountId, scopes: [...scopes], expires_at: new Date(this.#now() + seconds * 1000),
      }).execute()
    return token
  }

  /** Checks a token. One of a revoked client is unknown. */
  async check(token: string): Promise<TokenCheck> {
    const known = this.#known.get(token)
    if (known !== undefined) return known.expiresAtMs > this.#now() ? { kind: 'valid', caller: known.caller } : { kind: 'expired' }
    const row = await this.#tables.selectFrom('access_tokens').innerJoin('api_clients', 'api_clients.id', 'access_tokens.client_id')
      .select(['access_tokens.client_id', 'access_tokens.account_id', 'access_tokens.scopes', 'access_tokens.expires_at'])
      .where('access_tokens.sha256', '=', digest(token)).where('api_clients.revoked_at', 'is', null).executeTakeFirst()
    if (row === undefined) return { kind: 'unknown' }
    const caller = { clientId: row.client_id, accountId: row.account_id, scopes: row.scopes }
    const expiresAtMs = row.expires_at.getTime()
    if (expiresAtMs <= this.#now()) return { kind: 'expired' }
    this.#known.set(token, { caller, expiresAtMs })
    return { kind: 'valid', caller }
  }

  /** Deletes tokens that expired a day ago. */
  async purge(): Promise<void> {
    await this.#tables.deleteFrom('access_tokens').where('expires_at', '<', new Date(this.#now() - KEEP_EXPIRED_MS)).execute()
  }
}
