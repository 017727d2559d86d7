/** Requests that wait for a change of something, by its name. */
import { ByOwner } from './by-owner.ts'
import type { Waiter } from './waiter.ts'

export class Waiters extends ByOwner<Waiter> {
  /** True after `close`: no request may wait any more. */
  isClosed = false

  /** Wakes the requests that wait for one. An empty name wakes all. */
  wake(name: string): void {
    for (const waiter of name === '' ? this.all() : this.of(name)) waiter.wake()
  }

  close(): void {
    this.isClosed = true
    this.wake('')
  }
}
