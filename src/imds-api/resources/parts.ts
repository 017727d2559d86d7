/** What the routes of some resources need besides. */
import type { Reports } from '../../metadata/reports.ts'
import type { AccessTokens } from '../auth/tokens.ts'
import type { ComputeMode } from '../changes/actions.ts'
import type { RouteParts } from './kit/parts.ts'

/** Reads the reports in the store. Undefined: there are none. Rejects if the store does not answer in time. */
export type ReadReports = (id: string) => Promise<Reports | undefined>

/** `compute`: how actions on servers are carried out. */
export interface ResourceParts extends RouteParts {
  readonly tokens: AccessTokens
  readonly compute: ComputeMode
  readonly reports: ReadReports
}
