/** Carries out the plan (plan.ts) for each loaded record: changes the view and reports to RecordHealth. */
import type { Log } from '../../runtime/log-codes.ts'
import type { Loaded } from '../../store/source.ts'
import type { ViewChange, ChangeLog } from './change.ts'
import { plan, type Origin, type PlanContext } from './plan.ts'
import type { RecordHealth } from './record-health.ts'
import type { ValidRecord } from './validate.ts'
import type { View } from './view.ts'

/**
 * What applying needs. A change is in `changeLog` before it is applied.
 */
export interface ApplierParts extends PlanContext {
  readonly view: View
  readonly changeLog: ChangeLog
  readonly health: RecordHealth
  readonly log: Log
}

/** Applies loaded records to the view, one at a time. */
export class Applier {
  readonly #parts: ApplierParts
  /**
   * Records that were read and name other hypervisors, although this one's index has them: id -> digest. A resync does
   * not read them again unchanged.
   */
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

  /**
   * Applies a loaded record. Calls `done` when its change is applied, or if there is none. Resolves when the queue of
   * changes has room, which may be earlier. An unexpected error with a record affects only its instance, not the sync.
   */
  async apply(loaded: Loaded, origin: Origin, done: () => void): Promise<void> {
    const change = this.#guarded(loaded, () => this.#planChange(loaded, origin))
    if (change === undefined) {
      done()
      return
    }
    await this.#parts.changeLog.append(change.change, change.removesUserData, () => {
      this.#guarded(loaded, change.apply)
      done()
    })
  }

  #guarded<T>(loaded: Loaded, work: () => T): T | undefined {
    try {
      return work()
    } catch (error) {
      const { log, health } = this.#parts
      log.error({ code: 'record-failed', err: error, instance: loaded.id }, 'a record could not be processed')
      health.noteFault(loaded.id, loaded.kind === 'removed' || loaded.kind === 'absent' ? undefined : loaded.digest, {
        reason: 'record',
        faults: [{ path: '', message: 'could not be processed' }],
      })
      return undefined
    }
  }

  /** What a record changes in the view; undefined: nothing. */
  #planChange(loaded: Loaded, origin: Origin): PlannedChange | undefined {
    const { id } = loaded
    const { view, health } = this.#parts
    const planned = plan(loaded, view.get(id), view.seen(id), origin, this.#parts)
    switch (planned.kind) {
      case 'ignore':
        return undefined
      case 'keep-absent':
        health.noteAbsent(id)
        return undefined
      case 'behind':
        health.noteBehind(id)
        return undefined
      case 'fault':
        health.notePresent(id)
        health.noteFault(id, planned.digest, planned.fault)
        return undefined
      case 'keep':
        this.#found(id)
        return undefined
      case 'replace':
        return this.#replacement(planned.record)
      case 'remove':
        return this.#removal(id, planned.order, planned.movedTo, origin)
    }
  }

  /** The store has a valid record of this id, or its removal. */
  #found(id: string): void {
    const { health } = this.#parts
    health.notePresent(id)
    health.noteGood(id)
    this.#elsewhere.delete(id)
  }

  #replacement(record: ValidRecord): PlannedChange {
    const { view, log } = this.#parts
    const {
      instance: { id, revision },
      userData,
    } = record
    const before = view.get(id)
    const removesUserData =
      before?.userData !== undefined && (userData === undefined || Buffer.compare(before.userData, userData) !== 0)
    return {
      change: { kind: 'replace', record },
      removesUserData,
      apply: () => {
        const losers = view.replace(record)
        if (losers.length > 0) log.info({ instances: losers, to: id }, 'instances have lost addresses to a later one')
        this.#found(id)
        log.debug({ instance: id, revision }, 'instance added to the view, or replaced')
      },
    }
  }

  #removal(id: string, order: number, movedTo: ValidRecord | undefined, origin: Origin): PlannedChange | undefined {
    const { view, log } = this.#parts
    const noteRemoved = () => {
      this.#found(id)
      if (movedTo !== undefined && origin === 'index') this.#elsewhere.set(id, movedTo.digest)
    }
    if (view.get(id) === undefined) {
      if (origin !== 'peer') view.remove(id, order) // guests choose what is looked up: that would be without bound
      noteRemoved()
      return undefined
    }
    return {
      change: { kind: 'remove', id, order },
      removesUserData: true,
      apply: () => {
        view.remove(id, order)
        noteRemoved()
        if (movedTo === undefined) log.debug({ instance: id }, 'instance left the view: it was removed')
        else
          log.info(
            { instance: id, revision: movedTo.instance.revision, hypervisors: movedTo.instance.hypervisors },
            'instance left this hypervisor: its record names others',
          )
      },
    }
  }
}

/** A change, and how to apply it once it is on disk. */
interface PlannedChange {
  readonly change: ViewChange
  readonly removesUserData: boolean
  readonly apply: () => void
}
