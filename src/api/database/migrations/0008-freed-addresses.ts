/** Addresses that are freed, but that records in the store may still name: see freeCloudIp in allocate.ts. */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  'alter table allocations add freed_account text, add freed_after bigint, add check (num_nulls(freed_account, freed_after) <> 1)',
  'create index allocations_freed on allocations (pool_id) where freed_account is not null',
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
