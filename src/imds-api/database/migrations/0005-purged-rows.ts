/** Finds deleted servers and images to delete their rows, and what refers to them (changes/servers.ts, changes/images.ts). */
import { sql, type Kysely } from 'kysely'

const CHANGES = `
  create index servers_deleted on servers (deleted_at) where deleted_at is not null;
  create index servers_deleted_of_account on servers (account_id, deleted_at) where deleted_at is not null;
  create index images_deleted on images (account_id) where status = 'deleted';
  drop index compute_actions_finished;
  create index compute_actions_of_server on compute_actions (server_id, finished_at);
  create index compute_actions_image on compute_actions (image_id) where image_id is not null;
  alter table compute_actions
    drop constraint compute_actions_server_id_fkey, add foreign key (server_id) references servers on delete cascade,
    drop constraint compute_actions_image_id_fkey, add foreign key (image_id) references images on delete set null;
  alter table server_keys
    drop constraint server_keys_server_id_fkey, add foreign key (server_id) references servers on delete cascade;
  alter table images
    drop constraint images_source_server_id_fkey,
    add foreign key (source_server_id) references servers on delete set null;`

export async function up(db: Kysely<unknown>): Promise<void> {
  await sql.raw(CHANGES).execute(db)
}
