/**
 * The ways in which checks look at this hypervisor. imdsctl/doctor/hypervisor.ts has the real ones; a test gives its
 * own, so that each check can be tested without it.
 */
import type { Settings } from '../../imdsd/check.ts'
import type { FileState } from '../../imdsd/conditions/state.ts'
import type { FirewallDocument } from '../../imdsd/firewall/document.ts'
import type { Parsed } from '../../metadata/parsed.ts'
import type { Readiness } from '../../imdsd/operator/documents.ts'
import type { Check, Finding } from '../../runtime/check.ts'
import type { CommandResult } from '../../runtime/command.ts'

export type DoctorCheck = Check<DoctorState>

/**
 * What imdsctl sees. The daemon and the store are looked at once: later calls have the same answer. No function throws or
 * rejects.
 */
export interface DoctorState {
  readonly settings: Settings
  /** Runs a command; undefined: it cannot be started, or does not end. */
  readonly run: (command: readonly string[], input?: string) => Promise<CommandResult | undefined>
  readonly file: (path: string) => FileState
  /** What the daemon says of itself; the fault is why it does not. */
  readonly readiness: () => Promise<Parsed<Readiness, string>>
  readonly version: string
  /** The listeners of the daemon, and its guests. */
  readonly firewall: () => Promise<Parsed<FirewallDocument, string>>
  /** Tries the store as the daemon uses it; finds nothing if its configuration is not valid. */
  readonly store: () => Promise<readonly Finding[]>
}
