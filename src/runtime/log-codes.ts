/**
 * The codes of log lines that an operator should look at. They are stable, unlike the texts of the lines.
 * docs/operations/symptoms.md has a row for each: what it means, what guests notice, and what to do.
 */
import type { Logger, LogFn } from 'pino'

export const LOG_CODES = [
  'action-failed',
  'actions-not-awaited',
  'address-contested',
  'address-lost',
  'address-missing',
  'address-unconfirmed',
  'address-unusable',
  'audit-file-not-reopened',
  'audit-line-not-written',
  'clock-set-back',
  'connections-dropped',
  'connections-full',
  'database-conflict',
  'database-connection-lost',
  'database-full',
  'database-slow',
  'database-unreachable',
  'files-misnamed',
  'firewall-awaited',
  'firewall-not-applied',
  'firewall-restored',
  'hypervisor-duplicate',
  'hypervisor-not-announced',
  'hypervisor-unnamed',
  'hypervisors-silent',
  'identity-certificate',
  'instance-unconfirmed',
  'interface-left-out',
  'invitation-not-recorded',
  'invitation-not-sent',
  'invitations-not-read',
  'journal-not-deleted',
  'journal-not-rewritten',
  'journal-not-served',
  'journal-rejected',
  'journal-torn',
  'listen-ignored',
  'log-lines-lost',
  'mail-not-configured',
  'network-not-served',
  'operator-not-allowed',
  'operators-cut-off',
  'record-failed',
  'record-faulty',
  'records-faulty',
  'reports-not-written',
  'request-failed',
  'request-refused',
  'requests-shed',
  'response-failed',
  'revision-behind',
  'rows-not-deleted',
  'server-faulty',
  'server-refused',
  'servers-not-published',
  'service-ended',
  'sign-in-not-kept',
  'signing-failed',
  'start-failed',
  'state-not-locked',
  'state-not-written',
  'stop-failed',
  'store-behind',
  'store-empty',
  'store-lost',
  'store-read-failed',
  'store-replaced',
  'store-unreachable',
  'store-unusable',
  'systemd-not-notified',
  'token-key-malformed',
  'token-key-not-kept',
  'unexpected-error',
  'variables-unknown',
  'view-not-kept',
] as const
export type LogCode = (typeof LOG_CODES)[number]

type LogWithCode = (fields: { readonly code: LogCode; readonly [name: string]: unknown }, message: string) => void

/** A log of pino, in which each line of level warn and above has a code. */
export interface Log extends Pick<Logger, 'level' | 'isLevelEnabled'> {
  readonly debug: LogFn
  readonly info: LogFn
  readonly warn: LogWithCode
  readonly error: LogWithCode
  readonly fatal: LogWithCode
}
