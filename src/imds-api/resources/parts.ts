/** What the routes of every resource need. */
import type pg from 'pg'
import type { AccessTokens } from '../auth/tokens.ts'
import type { AccountChanges } from '../changes/account-changes.ts'
import type { ComputeMode } from '../changes/actions.ts'
import type { EventStreams } from './event-streams.ts'
import type { ReadReports } from './guest-reports.ts'
import type { MemberWaits } from './member-waits.ts'
import type { Site } from './site.ts'
import type { Db } from '../database/transaction.ts'

/**
 * `pool`: for prepared queries. `accounts`: the changes of accounts' resources. `compute`: how actions on servers are
 * carried out. `keepsReports`: whether the store keeps reports of guests. `encryptsRecords`: whether it encrypts.
 */
export interface ResourceParts {
  readonly db: Db
  readonly pool: pg.Pool
  readonly accounts: AccountChanges
  readonly tokens: AccessTokens
  readonly site: Site
  readonly compute: ComputeMode
  readonly reports: ReadReports
  readonly streams: EventStreams
  readonly waits: MemberWaits
  readonly keepsReports: boolean
  readonly encryptsRecords: boolean
}
