/** The collaborations of the region file. */
import { sql } from 'kysely'
import { nextId } from '../changes/allocate.ts'
import { lockAccount } from '../changes/limits.ts'
import type { Tx } from '../database/transaction.ts'
import type { RegionFile } from './schema.ts'

/**
 * Makes the collaborations of the file, which are accepted from the start. A pending invitation of such a user becomes
 * accepted. Once the user or the account has ended or rejected one, the file makes no other. Collaborations that the
 * file does not have stay. Returns the lines of the difference.
 */
export async function applyCollaborations(tx: Tx, file: RegionFile): Promise<readonly string[]> {
  const lines: string[] = []
  for (const { id: account_id, owner, collaborators = [] } of file.accounts) {
    // an invitation at the same time would make a second collaboration
    if (collaborators.length > 0) await lockAccount(tx, account_id)
    for (const user_id of collaborators) {
      const email = file.users.find((user) => user.id === user_id)!.email_address
      const rows = await tx
        .selectFrom('collaborations')
        .select(['id', 'status'])
        .where('account_id', '=', account_id)
        .where((where) => where.or([where('user_id', '=', user_id), sql<boolean>`lower(email) = lower(${email})`]))
        .execute()
      if (rows.some(({ status }) => ['accepted', 'rejected', 'ended'].includes(status))) continue
      const pending = rows.find(({ status }) => status === 'pending')
      const accepted = { user_id, status: 'accepted', started_at: new Date() } as const
      if (pending !== undefined) {
        await tx.updateTable('collaborations').set(accepted).where('id', '=', pending.id).execute()
        lines.push(`~ collaboration of ${user_id} in ${account_id}: pending -> accepted`)
        continue
      }
      const id = await nextId(tx, 'col')
      await tx
        .insertInto('collaborations')
        .values({ ...accepted, id, account_id, inviter_id: owner, email, role: 'admin', finished_at: null })
        .execute()
      lines.push(`+ collaboration of ${user_id} in ${account_id}`)
    }
  }
  return lines
}
