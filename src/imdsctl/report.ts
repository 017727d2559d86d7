/** Reports what was done to each of many records. */
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { RECORD_ENDINGS } from '../store/document.ts'

/**
 * The outcome of one record: its kind for the summary, its exit status, the text to print, and the object for `--json`.
 */
export interface CommandOutcome {
  readonly kind: string
  readonly status: number
  readonly text: string
  readonly warnings?: readonly string[]
  readonly json: Readonly<Record<string, unknown>>
}

/** How many different warnings a report of failures prints: in a new region, no hypervisor has announced itself. */
const MAX_WARNINGS = 3

/** Prints outcomes, and a summary of more than one. `each`: every outcome. `failures`: only those that failed. */
export class CommandReport {
  readonly #output: Output
  readonly #prints: 'each' | 'failures'
  #done = 0
  readonly #counts = new Map<string, number>()
  readonly #warned = new Set<string>()
  #status: number = EXIT.done

  constructor(output: Output, prints: 'each' | 'failures') {
    this.#output = output
    this.#prints = prints
  }

  add({ status, kind, text, warnings = [], json }: CommandOutcome): void {
    this.#counts.set(kind, (this.#counts.get(kind) ?? 0) + 1)
    this.#status = Math.max(this.#status, status)
    this.#done += 1
    const isPrinted = this.#prints === 'each' || status !== EXIT.done
    if (isPrinted && (this.#output.json || status === EXIT.done)) this.#output.result(json, text)
    else if (isPrinted) this.#output.warn(text)
    if (!this.#output.json) for (const warning of warnings) this.#warn(warning)
  }

  /** Prints a warning once, even if it concerns many records. */
  #warn(text: string): void {
    if (this.#warned.has(text)) return
    this.#warned.add(text)
    if (this.#prints === 'each' || this.#warned.size <= MAX_WARNINGS) this.#output.warn(`warning: ${text}`)
  }

  /** Reports that the store cannot be used any more. */
  stopped(): void {
    const message = 'stopped: the store cannot be used, and the remaining records were not published'
    if (this.#output.json) this.#output.printJson({ error: message })
    else this.#output.warn(message)
  }

  /** Prints the summary, and returns the highest exit status. */
  end(): number {
    const records = this.#done
    const more = this.#warned.size - MAX_WARNINGS
    if (this.#prints === 'failures' && more > 0) this.#output.warn(`warning: ${more} more of this kind`)
    if (records === 0)
      throw new CommandFailure(
        EXIT.noInput,
        `no record found: in a directory, the files of records end in ${RECORD_ENDINGS.join(', ')}`,
      )
    if (records > 1 || this.#prints === 'failures') {
      const summary = [...this.#counts].map(([kind, count]) => `${count} ${kind}`).join(', ')
      this.#output.result({ records, ...Object.fromEntries(this.#counts) }, `${records} records: ${summary}`)
    }
    return this.#status
  }
}
