/**
 * The promise that a report of a guest stays once a daemon has accepted it: each later life of the daemon has it, until
 * it is in the store.
 */
import type { Life } from './hypervisor.ts'
import type { SimulatedStore } from './store.ts'

/** What a report needs until the journal has it. */
export const REPORT_MS = 45_000

interface Accepted {
  readonly hypervisor: string
  readonly id: string
  readonly name: string
  readonly value: string
  readonly atMs: number
  readonly stay: object
  /** Another hypervisor has accepted one of this name, and neither had seen the other's: either may stay. */
  readonly isEither: boolean
}

export class ReportChecks {
  readonly #store: SimulatedStore
  #accepted: Accepted[] = []

  constructor(store: SimulatedStore) {
    this.#store = store
  }

  /** A report was accepted. During a migration, the last one of either hypervisor counts. */
  accepted(hypervisor: string, id: string, name: string, value: string, life: Life): void {
    const { time } = this.#store
    time.note(`${hypervisor} accepts a report of ${id}: ${name} is ${value}`)
    const { stay } = life.view.get(id)!
    const isFormer = (one: Accepted) => one.id === id && one.name === name
    const unseen = this.#accepted.filter(
      (one) => isFormer(one) && one.hypervisor !== hypervisor && !this.#isStored(one),
    )
    this.forget(isFormer)
    for (const one of unseen) this.#accepted.push({ ...one, isEither: true })
    this.#accepted.push({ hypervisor, id, name, value, atMs: time.nowMs, stay, isEither: unseen.length > 0 })
  }

  /** Reports that nobody needs any more, or that may be lost. */
  forget(isGone: (report: Accepted) => boolean): void {
    this.#accepted = this.#accepted.filter((one) => !isGone(one))
  }

  /** The daemon of a hypervisor was killed. `isTroubled`: its journal may have no report. */
  ended(hypervisor: string, isTroubled: boolean): void {
    const isKept = ({ atMs }: Accepted) => !isTroubled && this.#store.time.nowMs - atMs > REPORT_MS
    this.forget((one) => one.hypervisor === hypervisor && !this.#isStored(one) && !isKept(one))
  }

  /** The daemon of a hypervisor has started. */
  checkStart(hypervisor: string, { view, reports }: Life): void {
    this.#accepted = this.#accepted.map((one) => {
      const served = one.hypervisor === hypervisor ? view.get(one.id) : undefined
      if (served === undefined) return one
      if (!one.isEither && !this.#isStored(one) && reports.of(served)?.byName.get(one.name)?.text !== one.value)
        this.#store.time.break(`a report that was accepted stays: ${hypervisor} has lost that of ${one.id} at a start`)
      return { ...one, stay: served.stay }
    })
  }

  /** Everything is well, and was long enough. */
  checkQuiet(hypervisor: string, { view }: Life): void {
    const { remove } = this.#store.refused // what a removal that fails may hold back is the reports of its own instance
    for (const one of this.#accepted) {
      const isHere = one.hypervisor === hypervisor && view.get(one.id)?.stay === one.stay
      if (isHere && !one.isEither && !remove.has(one.id) && !this.#isStored(one))
        this.#store.time.break(`a report that was accepted reaches the store: not that of ${one.id} on ${hypervisor}`)
    }
  }

  #isStored({ hypervisor, id, name, value }: Accepted): boolean {
    return this.#store.reportsOf(hypervisor, id)?.byName.get(name)?.text === value
  }
}
