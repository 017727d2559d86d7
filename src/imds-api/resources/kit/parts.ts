/** What the routes of resources need. */
import type pg from 'pg'
import type { Reports } from '../../../metadata/reports.ts'
import type { AccessTokens } from '../../auth/tokens.ts'
import type { AccountChanges } from '../../changes/account-changes.ts'
import type { ComputeMode } from '../../changes/actions.ts'
import type { Db } from '../../database/transaction.ts'
import type { ApiServer } from '../../http/server.ts'
import type { Affected } from './affected.ts'
import type { Site } from './forms.ts'
import type { Waits } from './waits.ts'

/** Reads the reports in the store. Undefined: there are none. Rejects if the store does not answer in time. */
export type ReadReports = (id: string) => Promise<Reports | undefined>

/**
 * `server`: to which they are added. `pool`: for prepared queries. `accounts`: the changes of accounts' resources.
 * `compute`: how actions on servers are carried out.
 */
export interface ResourceParts {
  readonly server: ApiServer
  readonly db: Db
  readonly pool: pg.Pool
  readonly accounts: AccountChanges
  readonly site: Site
  readonly waits: Waits
  readonly affected: Affected
  readonly tokens: AccessTokens
  readonly compute: ComputeMode
  readonly reports: ReadReports
}
