/**
 * What both sides of a finished collaboration see of each other: the account, its user and its inviter as they were when it
 * finished (changes/collaborations.ts).
 */
import { sql, type Kysely, type RawBuilder } from 'kysely'

/** The parties of a row of `collaborations`, as they are now. */
export const PARTIES: RawBuilder<object> = sql`jsonb_build_object(
  'account', (select jsonb_build_object('id', id, 'name', name, 'status', status)
    from accounts where accounts.id = collaborations.account_id),
  'user', ${userNow('user_id')}, 'inviter', ${userNow('inviter_id')})`

function userNow(column: string): RawBuilder<object> {
  return sql`(select jsonb_build_object(
    'id', id, 'name', name, 'email_address', email_address, 'two_factor', totp_secret is not null)
    from users where users.id = ${sql.ref(`collaborations.${column}`)})`
}

export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table collaborations add column parties jsonb`.execute(db)
  await sql`update collaborations set parties = ${PARTIES} where finished_at is not null`.execute(db)
}
