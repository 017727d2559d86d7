/**
 * The boot traces of all guests of this hypervisor, and the durations of boots. A trace lasts as long as the view has
 * its instance, and no longer than the process.
 */
import { BootTrace, type BootTraceReport, type Noted } from './boot-trace.ts'
import { guestOf, type FoundGuest, type Guest } from './identify.ts'

/**
 * The parts of a boot whose durations are observed: from the time that the daemon began to serve the instance to the
 * first request of its first boot, and from the first to the last request of the crawl of each boot.
 */
export const BOOT_PHASES = ['first-request', 'crawl'] as const
export type ObserveBoot = (phase: (typeof BOOT_PHASES)[number], seconds: number) => void

type TracedGuest = Pick<Guest, 'stay'>

export class BootTraces {
  readonly #traces = new WeakMap<TracedGuest['stay'], BootTrace>()
  #observe: ObserveBoot = () => undefined
  #publishedFromMs = Infinity

  /** Sets the function that takes the durations. */
  onDuration(observe: ObserveBoot): void {
    this.#observe = observe
  }

  /**
   * The view is complete: an instance that enters it from now on was published at that moment. The time is unknown for
   * instances that it already has, and for live migrations.
   */
  complete(nowMs: number): void {
    this.#publishedFromMs = Math.min(this.#publishedFromMs, nowMs)
  }

  /** When an instance was published, in ms of the view's clock; undefined: unknown. */
  publishedMs({ stay: { sinceMs } }: TracedGuest): number | undefined {
    return sinceMs !== undefined && sinceMs > this.#publishedFromMs ? sinceMs : undefined
  }

  /** Notes a request of a guest. It waits for nothing. */
  note(found: FoundGuest, request: Noted): void {
    const guest = guestOf(found)
    if (guest === undefined) return
    let trace = this.#traces.get(guest.stay)
    if (trace === undefined) this.#traces.set(guest.stay, (trace = new BootTrace(this.#reportOf(guest))))
    trace.note(request)
  }

  /** The trace of a guest; undefined before its first request. */
  of({ stay }: TracedGuest): BootTrace | undefined {
    return this.#traces.get(stay)
  }

  #reportOf(guest: TracedGuest): BootTraceReport {
    let publishedMs = this.publishedMs(guest)
    return {
      onBegin: (firstMs) => {
        if (publishedMs !== undefined) this.#observe('first-request', (firstMs - publishedMs) / 1000)
        publishedMs = undefined
      },
      onCrawlEnd: (tookMs) => this.#observe('crawl', tookMs / 1000),
    }
  }
}
