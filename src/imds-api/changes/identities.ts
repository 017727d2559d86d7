/**
 * The issuer of the identity tokens of an account's servers, and its keys. Each change publishes all these servers.
 *
 * A key is in `jwks.json` from its beginning, and signs SIGNS_AFTER_MS later, when all verifiers know it. A rotation
 * deletes the retired key and makes a new one, so there are at most two. The record of a server has both keys and the
 * times from which they sign, so nothing is published between two changes.
 */
import { sql, type Insertable, type Selectable } from 'kysely'
import { markChanged } from '../database/outbox.ts'
import type { Tables } from '../database/tables.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { RETIRES_AFTER_MS, SIGNS_AFTER_MS, type NewKey } from '../model/identity-key.ts'
import { refuse, type Refusal } from '../model/refusal.ts'
import { formatTime } from '../model/time.ts'
import { addRow } from './own-rows.ts'

/** The issuer of an account, and its keys, the newest last. */
export type AccountIssuer = Selectable<Tables['account_identities']> & {
  readonly keys: readonly Selectable<Tables['identity_keys']>[]
}

export type IssuerFields = Omit<Insertable<Tables['account_identities']>, 'account_id' | 'issuer' | 'created_at'>

const NO_ISSUER = refuse('resource_not_found', 'this account has no identity: make one by PUT /1.0/account/identity')

export async function findIssuer(db: Db, accountId: string): Promise<AccountIssuer | undefined> {
  const issuer = await db
    .selectFrom('account_identities')
    .selectAll()
    .where('account_id', '=', accountId)
    .executeTakeFirst()
  if (issuer === undefined) return undefined
  const keys = await db
    .selectFrom('identity_keys')
    .selectAll()
    .where('account_id', '=', accountId)
    .orderBy('signs_from')
    .orderBy('kid')
    .execute()
  return { ...issuer, keys }
}

/** The issuer of an account. Refuses if it has none. */
export async function requireIssuer(db: Db, accountId: string): Promise<AccountIssuer> {
  const issuer = await findIssuer(db, accountId)
  if (issuer === undefined) throw NO_ISSUER
  return issuer
}

/** Makes the issuer of an account, with its first key, which signs at once. */
export async function createIssuer(
  tx: Tx,
  accountId: string,
  issuer: string,
  fields: IssuerFields,
  key: NewKey,
): Promise<void> {
  await addRow(tx, 'account_identities', { account_id: accountId, issuer, ...fields })
  await addRow(tx, 'identity_keys', { account_id: accountId, ...key, signs_from: new Date() })
  await publishServers(tx, accountId)
}

/** Changes the issuer of an account. Another algorithm is that of the next key. */
export async function updateIssuer(tx: Tx, accountId: string, fields: Partial<IssuerFields>): Promise<void> {
  if (Object.keys(fields).length === 0) return
  await tx.updateTable('account_identities').set(fields).where('account_id', '=', accountId).execute()
  await publishServers(tx, accountId)
}

/** Why the keys of an issuer cannot be rotated now; undefined: they can. */
export function rotationRefusal({ keys }: AccountIssuer, nowMs: number): Refusal | undefined {
  const until = keys.find(({ retires_at }) => retires_at !== null && retires_at.getTime() > nowMs)?.retires_at
  return until == null
    ? undefined
    : refuse(
        'resource_conflict',
        `the last rotation ends at ${formatTime(until)}, when the key before it retires: rotate after that. ` +
          'To destroy all keys at once, DELETE the identity and make a new one',
      )
}

/**
 * Adds a new key, and lets the present one retire. Refuses while another one retires. `key`: undefined, as none could be
 * rotated before this transaction.
 */
export async function rotateKeys(tx: Tx, accountId: string, key: NewKey | undefined): Promise<void> {
  const now = Date.now()
  const refusal = rotationRefusal(await requireIssuer(tx, accountId), now)
  if (refusal !== undefined) throw refusal
  if (key === undefined) throw refuse('resource_conflict', 'the identity was changed meanwhile: try again')
  const signsFrom = now + SIGNS_AFTER_MS
  await tx.deleteFrom('identity_keys').where('account_id', '=', accountId).where('retires_at', 'is not', null).execute()
  await tx
    .updateTable('identity_keys')
    .set({ retires_at: new Date(signsFrom + RETIRES_AFTER_MS) })
    .where('account_id', '=', accountId)
    .execute()
  await addRow(tx, 'identity_keys', { account_id: accountId, ...key, signs_from: new Date(signsFrom) })
  await publishServers(tx, accountId)
}

export async function deleteIssuer(tx: Tx, accountId: string): Promise<void> {
  await tx.deleteFrom('account_identities').where('account_id', '=', accountId).execute()
  await publishServers(tx, accountId)
}

async function publishServers(tx: Tx, accountId: string): Promise<void> {
  const { rows } = await sql<{ id: string }>`
    select id from servers where account_id = ${accountId} and deleted_at is null`.execute(tx)
  await markChanged(
    tx,
    rows.map(({ id }) => id),
  )
}
