/**
 * The places of allocations, a sequence for each kind of pools (changes/allocate.ts). The column `cursor` stays, since
 * programs of the version before may run at the same time. The gap keeps the two apart meanwhile.
 */
import { sql, type Kysely } from 'kysely'

const GAP = 1_024

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const kind of ['mac', 'private_ipv4', 'public_ipv4', 'public_ipv6']) {
    await sql.raw(`create sequence place_${kind} minvalue 0`).execute(database)
    await sql`
      select setval(${`place_${kind}`}::regclass, cursor + ${GAP}) from (
        select cursor from address_pools where kind = ${kind} order by id limit 1) as first
      where cursor > 0`.execute(database)
  }
}
