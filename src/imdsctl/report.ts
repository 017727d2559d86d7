/** Reports what was done to each of many instances or records. */
import { forEachOf } from '../limits/for-each-of.ts'
import { formatCount } from '../runtime/amounts.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { RECORD_ENDINGS } from '../store/document.ts'
import { StoreUnavailable } from '../store/publisher.ts'
import { MAX_IN_FLIGHT } from './commands.ts'
import { failureOf, printFailure } from './failure.ts'

/** What was done to one of them, as text and for `--json`. The summary counts the results. */
export interface Done {
  readonly text: string
  readonly json: {
    readonly result: string
    readonly warnings?: readonly string[]
    readonly [field: string]: unknown
  }
}

/** What the summary calls a failure, by its exit status. */
const FAILED: Readonly<Record<number, string>> = {
  [EXIT.refused]: 'refused',
  [EXIT.badData]: 'faulty',
  [EXIT.noInput]: 'unreadable',
}

/** How many different warnings a report of failures prints: in a new region, no hypervisor has announced itself. */
const MAX_WARNINGS = 3

/** Prints outcomes, and a summary unless there is a single one. `failures`: only those, and always the summary. */
export class CommandReport {
  readonly #output: Output
  readonly #noun: 'instance' | 'record'
  readonly #prints: 'each' | 'failures'
  #done = 0
  readonly #counts = new Map<string, number>()
  readonly #warned = new Set<string>()
  #status: number = EXIT.done
  #isStopped = false

  constructor(output: Output, noun: 'instance' | 'record', prints: 'each' | 'failures') {
    this.#output = output
    this.#noun = noun
    this.#prints = prints
  }

  /** Changes each of some values, several at a time, and adds the outcomes. Continues unless the store is unavailable. */
  async addEach<T>(values: Iterable<T>, change: (value: T) => Promise<Done>): Promise<void> {
    let isAvailable = true
    const work = async (value: T) => {
      if (!isAvailable) {
        this.stop()
        return
      }
      const outcome = await change(value).catch((error: unknown) => {
        if (error instanceof StoreUnavailable) isAvailable = false
        return failureOf(error)
      })
      this.add(outcome)
    }
    await forEachOf(values, work, MAX_IN_FLIGHT)
  }

  add(outcome: Done | CommandFailure): void {
    this.#done += 1
    if (outcome instanceof CommandFailure) {
      this.#count(FAILED[outcome.status] ?? 'failed')
      this.#status = Math.max(this.#status, outcome.status)
      printFailure(this.#output, outcome)
    } else {
      this.#count(outcome.json.result)
      if (this.#prints === 'each') this.#output.result(outcome.json, outcome.text)
    }
    const { warnings = [] } = outcome instanceof CommandFailure ? outcome.details : outcome.json
    if (!this.#output.json) for (const warning of warnings) this.#warn(warning)
  }

  #count(result: string): void {
    this.#counts.set(result, (this.#counts.get(result) ?? 0) + 1)
  }

  /** Prints a warning once, even if it concerns many records. */
  #warn(text: string): void {
    if (this.#warned.has(text)) return
    this.#warned.add(text)
    if (this.#prints === 'each' || this.#warned.size <= MAX_WARNINGS) this.#output.warn(`warning: ${text}`)
  }

  /** The store cannot be used any more, and nothing else is tried. */
  stop(): void {
    this.#isStopped = true
  }

  /** Prints the summary, and returns the highest exit status. */
  end(): number {
    const more = this.#warned.size - MAX_WARNINGS
    if (this.#prints === 'failures' && more > 0) this.#output.warn(`warning: ${more} more of this kind`)
    if (this.#isStopped)
      printFailure(
        this.#output,
        failureOf(`stopped: the store cannot be used, and the remaining ${this.#noun}s were not tried`),
      )
    if (this.#done === 0 && this.#noun === 'record')
      throw new CommandFailure(
        EXIT.noInput,
        `no record found: in a directory, the files of records end in ${RECORD_ENDINGS.join(', ')}`,
      )
    if (this.#done !== 1 || this.#prints === 'failures') {
      const counts = [...this.#counts].map(([result, count]) => `${count} ${result}`)
      this.#output.result(
        { [`${this.#noun}s`]: this.#done, ...Object.fromEntries(this.#counts) },
        [formatCount(this.#done, this.#noun), ...counts].join(', '),
      )
    }
    return this.#status
  }
}
