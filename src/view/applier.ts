/**
 * Carries out the plan (plan.ts) for each loaded record: changes the view and reports to RecordHealth.
 */
import type { Logger } from 'pino'
import type { Instance } from '../metadata/instance.ts'
import type { Loaded } from '../store/source.ts'
import { plan, type Origin, type PlanContext } from './plan.ts'
import type { RecordHealth } from './record-health.ts'
import type { Assembled } from './validate.ts'
import type { View } from './view.ts'

/** What applying needs. `changed` is called after each change of the view. */
export interface ApplierParts extends PlanContext {
  readonly view: View
  readonly health: RecordHealth
  readonly changed: () => void
  readonly revisionsBack: { inc(): void }
  readonly log: Logger
}

/** Applies loaded records to the view, one at a time. */
export class Applier {
  readonly #parts: ApplierParts
  /** Id -> digest of the last record read, for ids in this hypervisor's index whose record names others. A resync does not read them again unchanged. */
  readonly #elsewhere = new Map<string, string | undefined>()

  constructor(parts: ApplierParts) {
    this.#parts = parts
  }

  /** True if the last applied record of an id had this digest, so that a resync can skip it. */
  isCurrent(id: string, digest: string): boolean {
    return (this.#parts.view.get(id)?.digest ?? this.#elsewhere.get(id)) === digest
  }

  /** Forgets ids that the store's index no longer has. */
  forgetAllBut(named: { has(id: string): boolean }): void {
    for (const id of this.#elsewhere.keys()) {
      if (!named.has(id)) this.#elsewhere.delete(id)
    }
  }

  /** Applies a loaded record. An unexpected error in the handling of a record affects only its instance, not the sync with the store. */
  apply(loaded: Loaded, origin: Origin): void {
    try {
      this.#apply(loaded, origin)
    } catch (error) {
      const { log, health } = this.#parts
      log.error({ err: error, instance: loaded.id }, 'a record could not be processed')
      health.fault(loaded.id, loaded.kind === 'removed' || loaded.kind === 'absent' ? undefined : loaded.digest, { reason: 'record', faults: [{ path: '', message: 'could not be processed' }] })
    }
  }

  #apply(loaded: Loaded, origin: Origin): void {
    const { id } = loaded
    const { view, health } = this.#parts
    const planned = plan(loaded, view.get(id), origin, this.#parts)
    switch (planned.kind) {
      case 'ignore':
        return
      case 'keep-absent':
        health.absent(id)
        return
      case 'fault':
        health.present(id)
        health.fault(id, planned.digest, planned.fault)
        return
      case 'keep':
        this.#found(id)
        return
      case 'replace':
        this.#found(id)
        this.#replace(planned.assembled)
        return
      case 'remove': {
        const { movedTo } = planned
        this.#found(id)
        if (movedTo !== undefined && origin === 'index') this.#elsewhere.set(id, movedTo.digest)
        this.#remove(id, movedTo?.instance)
      }
    }
  }

  /** The store has a valid record of this id, or its removal. */
  #found(id: string): void {
    const { health } = this.#parts
    health.present(id)
    health.good(id)
    this.#elsewhere.delete(id)
  }

  #replace(assembled: Assembled): void {
    const { view, revisionsBack, log, changed } = this.#parts
    const { id, revision } = assembled.instance
    const before = view.get(id)
    if (before !== undefined && revision < before.instance.revision) {
      revisionsBack.inc()
      log.warn({ instance: id, revision, heldRevision: before.instance.revision }, 'the store went back to an older revision, which is served now')
    }
    view.replace(assembled)
    changed()
    log.debug({ instance: id, revision }, 'instance added to the view, or replaced')
  }

  #remove(id: string, movedTo: Instance | undefined): void {
    const { view, log, changed } = this.#parts
    if (!view.remove(id)) return
    changed()
    if (movedTo === undefined) log.debug({ instance: id }, 'instance left the view: it was removed')
    else log.info({ instance: id, revision: movedTo.revision, hypervisors: movedTo.hypervisors }, 'instance left this hypervisor: its record names others')
  }
}
