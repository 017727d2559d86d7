/** The collaborations of the region file. */
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import { grantAccess } from '../changes/collaborations.ts'
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
      const user = file.users.find(({ id }) => id === user_id)
      if (user === undefined)
        throw new CommandFailure(EXIT.badConfig, `account ${account_id}: users has no ${user_id}. Nothing was changed`)
      const given = await grantAccess(tx, account_id, owner, user)
      if (given === 'accepted') lines.push(`~ collaboration of ${user_id} in ${account_id}: pending -> accepted`)
      if (given === 'created') lines.push(`+ collaboration of ${user_id} in ${account_id}`)
    }
  }
  return lines
}
