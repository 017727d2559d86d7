/** What the routes of every resource need. */
import type pg from 'pg'
import type { AccountChanges } from '../../changes/account-changes.ts'
import type { Db } from '../../database/transaction.ts'
import type { ApiServer } from '../../http/server.ts'
import type { Affected } from './affected.ts'
import type { Site } from './forms.ts'
import type { Waits } from './waits.ts'

/** `server`: to which they are added. `pool`: for prepared queries. `accounts`: the changes of accounts' resources. */
export interface RouteParts {
  readonly server: ApiServer
  readonly db: Db
  readonly pool: pg.Pool
  readonly accounts: AccountChanges
  readonly site: Site
  readonly waits: Waits
  readonly affected: Affected
}
