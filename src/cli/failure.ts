/** A failed command of imdsctl: its exit status, the message, and fields that `--json` adds. */
export class Failure extends Error {
  readonly status: number
  readonly details: Readonly<Record<string, unknown>>

  constructor(status: number, message: string, details: Readonly<Record<string, unknown>> = {}) {
    super(message)
    this.status = status
    this.details = details
  }
}
