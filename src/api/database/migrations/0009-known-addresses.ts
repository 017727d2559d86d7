/**
 * The addresses from which clients and users have succeeded (auth/known-addresses.ts). `subject`: the SHA-256 of its
 * id, as FailureLimit has it.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  `create table known_addresses (
    kind text not null check (kind in ('client', 'user')),
    subject text not null,
    source text not null,
    last_success timestamptz not null,
    primary key (kind, subject, source)
  )`,
  'create index known_addresses_age on known_addresses (last_success)',
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
