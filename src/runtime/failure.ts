/**
 * How imdsctl ends: its exit statuses, and the error that carries one. Apart from the commands, since every start needs it.
 */

/** Exit statuses: those of sysexits.h where it has one. */
export const EXIT = {
  done: 0, notFound: 1, refused: 2, usage: 64, badData: 65, noInput: 66, unavailable: 69, software: 70, system: 71, timeout: 75,
} as const

/** An end other than success: its exit status, what a person reads, and what `--json` adds. */
export class Failure extends Error {
  readonly status: number
  readonly details: Readonly<Record<string, unknown>>

  constructor(status: number, message: string, details: Readonly<Record<string, unknown>> = {}) {
    super(message)
    this.status = status
    this.details = details
  }
}
