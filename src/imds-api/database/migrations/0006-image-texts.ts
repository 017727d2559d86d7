/**
 * The texts of another account's image when a server was made of it. The server's account sees them while it may not see the
 * image (changes/images.ts).
 */
import { sql, type Kysely } from 'kysely'

export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table servers add column image_texts jsonb`.execute(db)
  await sql`
    update servers set image_texts = jsonb_build_object(
      'name', images.name, 'username', images.username, 'description', left(images.description, 255), 'arch', images.arch)
    from images where images.id = servers.image_id and images.account_id <> servers.account_id`.execute(db)
}
