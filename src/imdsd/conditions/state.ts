/** What the conditions of imdsd are found in: a snapshot of the daemon, without I/O. */
import type { X509Certificate } from 'node:crypto'
import type { Condition, SomeThings } from '../../conditions/condition.ts'
import type { FirewallStatus } from '../firewall/firewall.ts'
import type { JournalProblem } from '../journal/persistence.ts'
import type { SyncStatus } from '../view/sync-state.ts'

/** A file or a directory; `code`: why it cannot be seen, such as ENOENT. */
export type FileState =
  | { readonly kind: 'file' | 'directory' | 'other'; readonly mode: number; readonly size: number }
  | { readonly kind: 'unseen'; readonly code: string }

/** The state directory and this process, as of the last look; undefined before it. */
export interface HostState {
  readonly directory: FileState
  readonly journalBytes: number
  /** The bytes that are free for the daemon's user. */
  readonly freeBytes: number | undefined
  readonly openDescriptors: number
  readonly maxDescriptors: number
}

export interface DaemonState {
  /** Unix time. */
  readonly wallMs: number
  /** Of the clock of `sync.changedAtMs`. */
  readonly nowMs: number
  readonly hypervisor: string | undefined
  /** The store, without secrets. */
  readonly store: string
  readonly resyncMs: number
  readonly sync: SyncStatus
  readonly viewAgeSeconds: number
  /** When the certificate of Redis ends, in seconds since 1970; 0: it has none, or was not reached yet. */
  readonly storeCertificateEndSeconds: number
  readonly isDuplicate: boolean
  /** Why Redis does not let the daemon announce itself, or write what guests report. */
  readonly writeFailure: string | undefined
  /** How many instances are served. */
  readonly instances: number
  /** Faulty records whose last good state is served, and those whose instances are not served. */
  readonly outdated: SomeThings
  readonly unserved: SomeThings
  readonly absent: SomeThings
  readonly contested: SomeThings
  readonly lostAddresses: SomeThings
  readonly firewall: FirewallStatus
  /** Addresses that wait for the rules of the firewall. */
  readonly waiting: SomeThings
  /** Why nobody is answered before the firewall has applied its rules. */
  readonly firewallWait: string | undefined
  /** Addresses of guest listeners that no interface has. */
  readonly missingAddresses: readonly string[]
  /** Why a network is not served. */
  readonly unservedNetworks: readonly string[]
  /** Why a listener of operators is not open. */
  readonly operatorProblems: readonly string[]
  readonly certificate: Pick<X509Certificate, 'validFromDate' | 'validToDate'> | undefined
  readonly stateDirectory: string
  readonly host: HostState | undefined
  readonly journal: JournalProblem | undefined
}

export type DaemonConditions = readonly Condition<DaemonState>[]
