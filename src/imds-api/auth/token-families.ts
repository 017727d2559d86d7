/**
 * Refresh tokens. All tokens that come from one sign-in are a family. It belongs to one application and one user, and
 * is revoked as a whole.
 *
 *     issued --first use--> used --30 s--> spent
 *
 * Each use returns a new refresh token. A used token can be used again for 30 s, since a client may send two requests
 * in parallel. If a spent token is used, it was probably stolen: the family is revoked with its access tokens (RFC
 * 9700, 4.14.2).
 */
import { sql } from 'kysely'
import { deleteInBatches } from '../database/purge.ts'
import type { Tx, Db } from '../database/transaction.ts'
import { digest, newToken } from './secrets.ts'

/** A refresh token that may be used. `scopes`: of its family. */
export interface UsableToken {
  readonly familyId: number
  readonly scopes: readonly string[]
  readonly sha256: Buffer
  readonly isFirstUse: boolean
}

const REUSE_MS = 30_000
/** The most sign-ins of one user with one application. */
const MAX_FAMILIES = 100
/**
 * The most refresh tokens of a sign-in: with the default lifetimes, those of its last 30 days. The reuse of an older
 * one is refused, and ends nothing.
 */
const MAX_REFRESH_TOKENS = 400
/** How many families one statement deletes, with all of their tokens. */
const FAMILY_BATCH = 100

/** Issues and uses refresh tokens. `now`: milliseconds since 1970. `seconds`: the lifetime of one. */
export class TokenFamilies {
  readonly #db: Db
  readonly #seconds: number
  readonly #now: () => number

  constructor(db: Db, seconds: number, now: () => number) {
    this.#db = db
    this.#seconds = seconds
    this.#now = now
  }

  /**
   * Begins a family with its first refresh token. Ends the oldest of this user and application beyond the limit. The
   * user must be locked.
   */
  async begin(
    tx: Tx,
    applicationId: string,
    userId: string,
    scopes: readonly string[],
  ): Promise<{ readonly familyId: number; readonly refreshToken: string }> {
    await sql`
      delete from token_families where id in (
        select id from token_families where application_id = ${applicationId} and user_id = ${userId}
        order by id desc offset ${MAX_FAMILIES - 1}
      )`.execute(tx)
    const { id } = await tx
      .insertInto('token_families')
      .values({ application_id: applicationId, user_id: userId, scopes: [...scopes] })
      .returning('id')
      .executeTakeFirstOrThrow()
    return { familyId: id, refreshToken: await this.#issue(tx, id) }
  }

  /**
   * Finds a refresh token that this application may use now. Revokes the family of a spent one, so the transaction must
   * be committed in any case.
   */
  async find(tx: Tx, applicationId: string, token: string): Promise<UsableToken | undefined> {
    const sha256 = digest(token)
    const row = await tx
      .selectFrom('refresh_tokens')
      .innerJoin('token_families', 'token_families.id', 'refresh_tokens.family_id')
      .select(['refresh_tokens.used_at', 'token_families.id', 'token_families.scopes'])
      .where('refresh_tokens.sha256', '=', sha256)
      .where('refresh_tokens.expires_at', '>', new Date(this.#now()))
      .where('token_families.application_id', '=', applicationId)
      .where('token_families.revoked_at', 'is', null)
      .forUpdate() // parallel uses wait, so one of them is the first
      .executeTakeFirst()
    if (row === undefined) return undefined
    const { id, scopes, used_at } = row
    if (used_at !== null && used_at.getTime() + REUSE_MS <= this.#now()) {
      await revokeFamilies(tx, 'id', [id])
      return undefined
    }
    return { familyId: id, scopes, sha256, isFirstUse: used_at === null }
  }

  /** Uses a refresh token. Returns the next one. */
  async rotate(tx: Tx, { familyId, sha256, isFirstUse }: UsableToken): Promise<string> {
    if (isFirstUse)
      await tx
        .updateTable('refresh_tokens')
        .set({ used_at: new Date(this.#now()) })
        .where('sha256', '=', sha256)
        .execute()
    return this.#issue(tx, familyId)
  }

  /** Deletes revoked families with their tokens. */
  async purgeRevoked(): Promise<void> {
    await deleteInBatches(this.#db, 'token_families', sql`revoked_at is not null`, FAMILY_BATCH)
  }

  /**
   * Deletes expired refresh tokens, and families without a token that is kept. Run it before AccessTokens.purge with
   * the same `keptSinceMs`: it finds families by their expired tokens.
   */
  async purgeExpired(atMs: number, keptSinceMs: number): Promise<void> {
    const [at, keptSince] = [new Date(atMs), new Date(keptSinceMs)]
    const isEnded = sql`
      id in (
        select family_id from refresh_tokens where expires_at <= ${at}
        union select family_id from access_tokens where expires_at < ${keptSince})
      and not exists (select from refresh_tokens where family_id = token_families.id and expires_at > ${at})
      and not exists (select from access_tokens where family_id = token_families.id and expires_at >= ${keptSince})`
    await deleteInBatches(this.#db, 'token_families', isEnded, FAMILY_BATCH)
    await deleteInBatches(this.#db, 'refresh_tokens', sql`expires_at <= ${at}`)
  }

  async #issue(tx: Tx, familyId: number): Promise<string> {
    const token = newToken()
    await deleteOldestTokens(tx, 'refresh_tokens', familyId, MAX_REFRESH_TOKENS)
    await tx
      .insertInto('refresh_tokens')
      .values({ sha256: digest(token), family_id: familyId, expires_at: new Date(this.#now() + this.#seconds * 1000) })
      .execute()
    return token
  }
}

/**
 * Deletes the oldest tokens of a family, so that there is room for one more. The family must be locked, or new in this
 * transaction.
 */
export async function deleteOldestTokens(
  db: Db,
  table: 'access_tokens' | 'refresh_tokens',
  familyId: number,
  most: number,
): Promise<void> {
  await sql`
    delete from ${sql.table(table)} where sha256 in (
      select sha256 from ${sql.table(table)} where family_id = ${familyId}
      order by expires_at desc offset ${most - 1}
    )`.execute(db)
}

/** Revokes families, with all of their tokens: those with these ids, or of these applications or users. */
export async function revokeFamilies(
  db: Db,
  column: 'id' | 'application_id' | 'user_id',
  values: readonly (string | number)[],
): Promise<void> {
  await db
    .updateTable('token_families')
    .set({ revoked_at: new Date() })
    .where((where) => where(column, '=', where.fn.any(where.val([...values]))))
    .where('revoked_at', 'is', null)
    .execute()
}
