/**
 * Writes what guests report to the store (contract H9), one instance at a time. While the store is unavailable, reports
 * wait in memory; all waiting reports of an instance are one write. After each loss of the store all reports are written
 * again: the store may have lost some.
 *
 * Before the first write of an instance, its reports in the store are merged: the journal may be older or lost, or the
 * instance was migrated from another hypervisor.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { joinReports, type Reports } from '../../metadata/reports.ts'
import type { ReportStore } from '../../store/source.ts'
import type { ServedInstance } from './served-instance.ts'

/** What a writer needs. `instances`: those of the view. `retryMs`: the pause after a failure. */
export interface ReportWriterParts {
  readonly store: ReportStore
  readonly hypervisor: string
  readonly find: (id: string) => ServedInstance | undefined
  /** The last reports of a guest, in memory. `merge` adds stored ones and returns all. */
  readonly reports: {
    of(served: ServedInstance): Reports | undefined
    merge(served: ServedInstance, stored: Reports): Reports
  }
  readonly instances: () => Iterable<ServedInstance>
  readonly writes: { inc(labels: { result: 'written' | 'failed' }): void }
  readonly retryMs: number
}

/** The pause between two writes, so that the hypervisors of a fleet do not overload a store that has come back. */
const PAUSE_MS = 20

export class ReportWriter {
  readonly #parts: ReportWriterParts
  /** Instances whose reports are to be written, or removed. */
  readonly #waiting = new Set<string>()
  /** Instances of which this process, or the one before it, may have written reports. */
  readonly #written = new Set<string>()
  /** Instances that have left, and whose reports are still in the store. */
  readonly #removed = new Set<string>()
  readonly #merged = new WeakSet<ServedInstance['stay']>()
  #failure: string | undefined
  readonly #stopping = new AbortController()
  #isRunning = false
  #run: Promise<void> = Promise.resolve()

  constructor(parts: ReportWriterParts) {
    this.#parts = parts
    for (const served of parts.instances()) {
      const { id, options } = served.instance
      if (parts.reports.of(served) !== undefined || options.reports === 'enabled') this.#written.add(id)
    }
  }

  /** Has the next `wake` write the reports of all instances. */
  writeAll(): void {
    const { instances, reports } = this.#parts
    for (const served of instances()) if (reports.of(served) !== undefined) this.#waiting.add(served.instance.id)
  }

  /** Why the last report could not be written, until all are. */
  get failure(): string | undefined {
    return this.#failure
  }

  noteReport(id: string): void {
    this.#waiting.add(id)
    this.wake()
  }

  /** The view has changed an instance. If it has left, its reports are deleted. */
  noteChange(id: string): void {
    if (this.#parts.find(id) !== undefined) return
    this.#waiting.delete(id)
    if (!this.#written.delete(id)) return
    this.#removed.add(id)
    this.noteReport(id)
  }

  /** Writes what waits. The store can be used now. */
  wake(): void {
    if (this.#isRunning) return
    this.#isRunning = true
    this.#run = this.#writeAll()
  }

  /** Ends the write under way, and starts no other. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#run
  }

  async #writeAll(): Promise<void> {
    const { signal } = this.#stopping
    for (const id of this.#waiting) {
      if (signal.aborted) break
      this.#waiting.delete(id)
      try {
        await this.#write(id)
        this.#parts.writes.inc({ result: 'written' })
        if (this.#waiting.size === 0) this.#failure = undefined
        else await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined)
      } catch (error) {
        this.#waiting.add(id) // behind the others, so that they do not wait for it
        this.#parts.writes.inc({ result: 'failed' })
        this.#failure = (error as Error).message
        await sleep(this.#parts.retryMs, undefined, { signal }).catch(() => undefined)
      }
    }
    this.#isRunning = false // in the same turn as the end of the loop, so that a later report starts it again
  }

  /** Removes the reports of an instance that has left, and writes those that it has now: it may have come back. */
  async #write(id: string): Promise<void> {
    const { store, find, reports } = this.#parts
    if (this.#removed.has(id)) {
      await store.remove(id)
      this.#removed.delete(id)
    }
    const served = find(id)
    if (served === undefined) return
    await this.#mergeStored(served)
    const all = reports.of(served)
    if (all === undefined || find(id)?.stay !== served.stay) return
    this.#written.add(id)
    await store.save(id, all)
  }

  async #mergeStored(served: ServedInstance): Promise<void> {
    const { store, hypervisor, reports } = this.#parts
    if (this.#merged.has(served.stay)) return
    const { id, hypervisors } = served.instance
    const stored = await store.load(id, [...new Set([hypervisor, ...hypervisors])])
    if (stored.length > 0) reports.merge(served, stored.reduce(joinReports))
    this.#merged.add(served.stay)
  }
}
