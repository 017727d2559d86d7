/**
 * The ways in which checks look at this hypervisor. imdsctl/doctor/hypervisor.ts has the real ones; a test gives its
 * own, so that each check can be tested without one.
 */
import type { Stats, StatsFs } from 'node:fs'
import type { FirewallDocument } from '../firewall/document.ts'
import type { Parsed } from '../../metadata/parsed.ts'
import type { Readiness } from '../operator/documents.ts'
import type { Check, Finding } from '../../runtime/check.ts'
import type { CommandResult } from '../../runtime/command.ts'
import type { HostPort } from '../../runtime/host-port.ts'
import type { MetricValues } from '../../runtime/metric-values.ts'
import type { Listener } from '../../runtime/listen.ts'
import type { Environment, VariableFault } from '../../runtime/variables.ts'

/** The parts of the daemon's configuration that checks read. */
export interface CheckedConfig {
  readonly store:
    | { readonly kind: 'redis'; readonly url: string }
    | { readonly kind: 'files'; readonly directory: string }
  readonly stateDirectory: string
  readonly resyncMs: number
  readonly journalMaxAgeMs: number
  readonly firewall: { readonly required: boolean }
  readonly listen: readonly Listener[]
  readonly operator: HostPort
  readonly unserved: readonly { readonly network: string }[]
  readonly needsFirewall: boolean
  readonly identity: { readonly certificate: { readonly validFromDate: Date; readonly validToDate: Date } } | undefined
}

/**
 * The configuration with which imds.service would start, its variables and what is wrong with them. `notes` are
 * warnings. `unknown`: variables that are ignored. `config`: undefined if a variable is not valid. `replaced`: variables
 * that the command has in place of the service's.
 */
export interface Settings {
  readonly faults: readonly VariableFault[]
  readonly notes: readonly string[]
  readonly unknown: readonly string[]
  readonly config: CheckedConfig | undefined
  readonly variables: Environment
  readonly replaced: readonly string[]
}

/** What is at a path. `code`: why it cannot be seen, such as ENOENT. */
export type FileState =
  | { readonly kind: 'file' | 'directory' | 'other'; readonly mode: number; readonly size: number }
  | { readonly kind: 'unseen'; readonly code: string }

export function stateOf(file: Stats): FileState {
  const kind = file.isFile() ? 'file' : file.isDirectory() ? 'directory' : 'other'
  return { kind, mode: file.mode, size: file.size }
}

/** `error`: of stat(2). */
export function unseen(error: unknown): FileState {
  return { kind: 'unseen', code: (error as NodeJS.ErrnoException).code ?? String(error) }
}

/** The bytes that are free for other users than root. */
export function freeBytesIn({ bavail, bsize, ffree, files }: StatsFs): number {
  return files > 0 && ffree === 0 ? 0 : bavail * bsize // without inodes no file can be created
}

/** The journal in the state directory. `ageMs`: since the view in it was compared with the store. */
export type JournalState =
  | { readonly kind: 'none' }
  | { readonly kind: 'read'; readonly ageMs: number; readonly instances: number }
  | { readonly kind: 'unreadable'; readonly reason: string }

export type DoctorCheck = Check<DoctorState>
/** A check that the daemon runs too, for its status page: it needs only what the daemon itself sees. */
export type DaemonCheck = Check<DaemonState>

/** What the daemon sees of its hypervisor itself. No function throws or rejects. */
export interface DaemonState {
  readonly settings: Settings
  /** Runs a command; undefined: it cannot be started, or does not end. */
  readonly run: (command: readonly string[], input?: string) => Promise<CommandResult | undefined>
  readonly file: (path: string) => FileState
  /** The bytes that are free for other users than root in the file system of a path; undefined: it cannot be seen. */
  readonly freeBytes: (path: string) => number | undefined
  /** True if packets to this address come to this hypervisor. */
  readonly hasAddress: (address: string) => Promise<boolean>
  /** What the daemon says of itself; the fault is why it does not. */
  readonly readiness: () => Promise<Parsed<Readiness, string>>
  readonly metrics: () => Promise<Parsed<MetricValues, string>>
  /** Where the daemon listens. */
  readonly listeners: () => Promise<Parsed<Pick<FirewallDocument, 'listeners' | 'operator'>, string>>
}

/** What imdsctl sees. The daemon, the store and the journal are looked at once: later calls have the same answer. */
export interface DoctorState extends DaemonState {
  readonly version: string
  readonly isRoot: boolean
  /** The operators' API of the daemon. */
  readonly operator: string
  /** What the firewall needs of the daemon: its listeners and guests. */
  readonly firewall: () => Promise<Parsed<FirewallDocument, string>>
  /** Tries the store as the daemon uses it; finds nothing if its configuration is not valid. */
  readonly store: () => Promise<readonly Finding[]>
  readonly journal: () => Promise<JournalState>
}
