/** The IPv6 networks of private ranges, and the IPv6 addresses and prefixes of servers (model/server-ipv6.ts). */
import { sql, type Kysely } from 'kysely'

export async function up(database: Kysely<unknown>): Promise<void> {
  await sql`alter table address_pools add column ipv6_network text`.execute(database)
  await sql`
    alter table interfaces add column ipv6_address text unique, add column ipv6_prefix text unique`.execute(database)
}
