/** What the routes of some resources need besides. */
import type { AccessTokens } from '../auth/tokens.ts'
import type { ComputeMode } from '../changes/actions.ts'
import type { ReadReports } from './guest-reports.ts'
import type { RouteParts } from './kit/parts.ts'

/** `compute`: how actions on servers are carried out. */
export interface ResourceParts extends RouteParts {
  readonly tokens: AccessTokens
  readonly compute: ComputeMode
  readonly reports: ReadReports
}
