/** Requests that wait for a new action of a hypervisor, by its name. */
import { ByOwner } from '../../limits/by-owner.ts'
import type { Waiter } from '../../limits/waiter.ts'

export class Waiters extends ByOwner<Waiter> {
  /** True after `close`: no request may wait any more. */
  isClosed = false

  /** Wakes the requests of a hypervisor. An empty name wakes those of all hypervisors. */
  wake(hypervisor: string): void {
    for (const waiter of hypervisor === '' ? this.all() : this.of(hypervisor)) waiter.wake()
  }

  close(): void {
    this.isClosed = true
    this.wake('')
  }
}
