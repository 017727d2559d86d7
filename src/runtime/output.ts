/**
 * What a command prints: results on standard output, messages on standard error.
 *
 * A write may fail: a full disk, or a reader that closed the pipe. A command that only prints ends then. Any other
 * command continues with its work; at its end, `finish` reports the loss on standard error and in the exit status.
 *
 * Control characters are escaped, because texts from the store must not reach a terminal as escape sequences.
 */
import type { Writable } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { escapeControls, formatRows, paintFor, widthOf, type Cell, type Screen } from './terminal.ts'
import { EXIT } from './exit-status.ts'

type Stream = Writable & Screen

/** The version of what `--json` prints (docs/json.md): it rises when a field changes its meaning or goes away. */
const JSON_FORMAT_VERSION = 1

/** The output of one program. `end`: ends the process with an exit status. */
export class Output {
  readonly #program: string
  readonly #out: Stream
  readonly #err: Stream
  #json = false
  #continues = false
  #lost: NodeJS.ErrnoException | undefined
  #last: string | undefined

  constructor(program: string, out: Stream, err: Stream, end: (status: number) => void) {
    this.#program = program
    this.#out = out
    this.#err = err
    out.on('error', (error: Error) => {
      this.#lost ??= error
      if (!this.#continues) end(this.#report(EXIT.done))
    })
    err.on('error', (error: Error) => {
      this.#lost ??= error
    })
  }

  /** Sets how the command of this process prints. `continues`: it does not end where its output is lost. */
  use({ json, continues }: { readonly json: boolean; readonly continues: boolean }): void {
    this.#json = json
    this.#continues = continues
  }

  get json(): boolean {
    return this.#json
  }

  /** Prints a result: `data` as JSON on one line, or `text`. */
  result(data: object, text: string): void {
    if (this.#json) this.printJson(data)
    else this.print(text)
  }

  /** Prints an object as JSON on one line, which begins with the version of its shape. */
  printJson(data: object): void {
    this.print(JSON.stringify({ formatVersion: JSON_FORMAT_VERSION, ...data }))
  }

  /** Prints lines on standard output. */
  print(text: string): void {
    this.#print(escapeControls(text, true))
  }

  #print(text: string): void {
    this.#last = text
    this.#out.write(`${text}\n`)
  }

  /** Prints a table with a header, a line for each row. */
  table(header: readonly string[], rows: readonly (readonly Cell[])[]): void {
    const names = header.map((text) => ({ text, style: 'bold' as const }))
    this.#print(formatRows([names, ...rows], undefined, paintFor(this.#out)).join('\n'))
  }

  /** Prints rows without a header. On a terminal the last column is wrapped to fit the width, and cells have their styles. */
  rows(rows: readonly (readonly Cell[])[]): void {
    if (rows.length > 0) this.#print(formatRows(rows, widthOf(this.#out), paintFor(this.#out)).join('\n'))
  }

  /** Writes bytes as they are; to a terminal with their control characters escaped. */
  write(bytes: Uint8Array): void {
    this.#out.write(this.#out.isTTY === true ? escapeControls(Buffer.from(bytes).toString(), true) : bytes)
  }

  /** Prints a message on standard error, after the name of the program. */
  warn(message: string): void {
    this.#err.write(`${escapeControls(`${this.#program}: ${message}`, true)}\n`)
  }

  /**
   * Waits until everything is written. Resolves with the exit status of the process: `status`, or that of lost output.
   */
  async finish(status: number): Promise<number> {
    await Promise.all([this.#out, this.#err].map(written))
    return this.#report(status)
  }

  /** Reports lost output, and returns the exit status. */
  #report(status: number): number {
    const { code, message } = this.#lost ?? {}
    if (message === undefined || (code === 'EPIPE' && !this.#continues)) return status
    const last = this.#continues && this.#last !== undefined ? `; its last line was: ${this.#last}` : ''
    this.warn(`output was lost: ${message}${last}`)
    return status === EXIT.done ? EXIT.outputLost : status
  }
}

/** Resolves when everything is written, or cannot be, and the error of that is known. */
async function written(stream: Stream): Promise<void> {
  if (stream.writableLength > 0) {
    await new Promise<void>((resolve) => {
      stream.write('', () => resolve())
    })
  }
  await setImmediate()
}
