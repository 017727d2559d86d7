/** Requests that wait for a new action of a hypervisor. */
import { ByOwner } from '../../limits/by-owner.ts'
import { Waiter } from '../../limits/waiter.ts'

export class Waiters {
  readonly #waiters = new ByOwner<Waiter>()
  #isClosed = false

  /** True after `close`: no request may wait any more. */
  get isClosed(): boolean {
    return this.#isClosed
  }

  add(hypervisor: string): Waiter {
    const waiter = new Waiter()
    this.#waiters.add(hypervisor, waiter)
    return waiter
  }

  remove(hypervisor: string, waiter: Waiter): void {
    this.#waiters.remove(hypervisor, waiter)
  }

  /** Wakes the requests of a hypervisor. An empty name wakes those of all hypervisors. */
  wake(hypervisor: string): void {
    for (const waiter of hypervisor === '' ? this.#waiters.all() : this.#waiters.of(hypervisor)) waiter.wake()
  }

  close(): void {
    this.#isClosed = true
    this.wake('')
  }
}
