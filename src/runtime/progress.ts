/** The progress of a command that works on many records, as a line that a terminal shows. */
import { formatDuration } from './ago.ts'
import type { Output } from './output.ts'

const BAR_WIDTH = 20

/** How far a command is. `total` undefined: not known. */
export interface ProgressState {
  readonly done: number
  readonly total: number | undefined
  readonly seconds: number
}

/** Shows the progress of one command. `what`: the plural of what it counts. */
export class Progress {
  readonly #output: Output
  readonly #what: string
  readonly #total: number | undefined
  readonly #startedMs = performance.now()

  constructor(output: Output, what: string, total: number | undefined) {
    this.#output = output
    this.#what = what
    this.#total = total
  }

  /** `outcomes` is called for the few lines that are shown. */
  show(done: number, outcomes: () => string = () => ''): void {
    this.#output.progress(() => {
      const seconds = (performance.now() - this.#startedMs) / 1000
      const line = formatProgress({ done, total: this.#total, seconds }, this.#what)
      return [line, outcomes()].filter((part) => part !== '').join(': ')
    })
  }
}

/** Formats a line: a bar, the amounts, the rate and the time that is left. */
export function formatProgress({ done, total, seconds }: ProgressState, what: string): string {
  const rate = done / seconds
  const speed = done === 0 ? '' : `, ${rate.toFixed(0)} a second`
  if (total === undefined || total === 0) return `${String(done)} ${what}${speed}`
  const share = Math.min(1, done / total)
  const filled = Math.floor(share * BAR_WIDTH)
  const left = done === 0 ? '' : `, ${formatDuration(Math.ceil(Math.max(0, total - done) / rate))} left`
  const bar = '#'.repeat(filled).padEnd(BAR_WIDTH, '.')
  return `[${bar}] ${String(Math.floor(share * 100))} %, ${String(done)} of ${String(total)} ${what}${speed}${left}`
}
