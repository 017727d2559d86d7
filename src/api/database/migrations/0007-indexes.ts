/**
 * Indexes for what requests look for: the accounts of a user, the invitations of an address, the images of an account,
 * and the servers of an image.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  'create index accounts_owner on accounts (owner_id)',
  'create index collaborations_email on collaborations (lower(email))',
  'create index images_account on images (account_id)',
  'create index images_public on images (id) where public',
  'create index servers_image on servers (image_id)',
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
