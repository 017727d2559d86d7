/**
 * The log as the programs use it. Lines that an operator should look at have a code, which is stable, unlike their texts:
 * conditions.md has a row for each.
 */
import type { Logger, LogFn } from 'pino'

/** A code of conditions.md. */
export type LogCode = string

type LogWithCode = (fields: { readonly code: string; readonly [name: string]: unknown }, message: string) => void

/** A log of pino, in which each line of level warn and above has a code. */
export interface Log extends Pick<Logger, 'level' | 'isLevelEnabled'> {
  readonly debug: LogFn
  readonly info: LogFn
  readonly warn: LogWithCode
  readonly error: LogWithCode
  readonly fatal: LogWithCode
}
