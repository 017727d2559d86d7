/** What the routes of every resource need. */
import type { Kysely } from 'kysely'
import type pg from 'pg'
import type { AccountChanges } from '../changes/account-changes.ts'
import type { ComputeMode } from '../changes/actions.ts'
import type { Tables } from '../database/tables.ts'
import type { ReadReports } from './guest-reports.ts'
import type { MemberWaits } from './member-waits.ts'
import type { Site } from './nested.ts'

/**
 * The database (`pool`: for prepared queries; `accounts`: for the changes of accounts' resources), the API's URL and
 * domain, how actions on servers are carried out, what reads the reports of guests, the requests that wait
 * for states, and what the store can do: whether it keeps reports of guests, and whether records are encrypted.
 */
export interface ResourceParts {
  readonly db: Kysely<Tables>
  readonly pool: pg.Pool
  readonly accounts: AccountChanges
  readonly site: Site
  readonly compute: ComputeMode
  readonly reports: ReadReports
  readonly waits: MemberWaits
  readonly keepsReports: boolean
  readonly encryptsRecords: boolean
}
