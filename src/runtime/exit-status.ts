/** Exit statuses of all programs. Those from 64 on are of sysexits.h. */
export const EXIT = {
  done: 0,
  notFound: 1,
  refused: 2,
  usage: 64,
  badData: 65,
  noInput: 66,
  unavailable: 69,
  software: 70,
  system: 71,
  outputLost: 74,
  timeout: 75,
  badConfig: 78,
} as const

/** A failed command, or one part of it: its exit status, the message, and fields that `--json` adds. */
export class CommandFailure extends Error {
  readonly status: number
  readonly details: { readonly warnings?: readonly string[]; readonly [field: string]: unknown }

  constructor(status: number, message: string, details: CommandFailure['details'] = {}) {
    super(message)
    this.status = status
    this.details = details
  }
}
