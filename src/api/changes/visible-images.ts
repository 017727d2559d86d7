/**
 * Which images an account sees: its own, and the public ones of the region and of the accounts that may publish images.
 */
import { sql, type RawBuilder } from 'kysely'

/** True for an image that is not deleted and that an account may see. For a query of `images`. */
export function isVisibleTo(accountId: string): RawBuilder<boolean> {
  return sql`(images.status <> 'deleted' and (images.account_id = ${accountId} or (images.public
    and (images.account_id is null or exists (select from accounts where accounts.id = images.account_id and accounts.publish_images)))))`
}
