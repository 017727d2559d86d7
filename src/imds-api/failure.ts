/** A failed command of imds-api: its exit status, and one or more lines of message. */
export class ApiCommandFailure extends Error {
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}
