/** Requests that wait for a new action of a hypervisor. A wake between `watch` and `wait` is not lost. */
import { ByOwner } from '../../limits/by-owner.ts'

/** One request that waits. */
export interface Waiter {
  /**
   * Resolves at a wake, at once if there was one since the last `wait` (or `watch`), and at the latest after
   * `timeoutMs`.
   */
  wait(timeoutMs: number): Promise<void>
  /** Forgets the request. */
  end(): void
}

/** The requests of all hypervisors. */
export class Waiters {
  readonly #wakes = new ByOwner<() => void>()
  #isClosed = false

  /** True after `close`: no request waits any more. */
  get isClosed(): boolean {
    return this.#isClosed
  }

  /** Adds a request that waits for a hypervisor. */
  watch(hypervisor: string): Waiter {
    let isWoken = false
    let resume = () => {
      /* does not wait */
    }
    const wake = () => {
      isWoken = true
      resume()
    }
    this.#wakes.add(hypervisor, wake)
    return {
      wait: async (timeoutMs) => {
        if (!isWoken && !this.#isClosed) {
          await new Promise<void>((resolve) => {
            const timer = setTimeout(resolve, timeoutMs)
            resume = () => {
              clearTimeout(timer)
              resolve()
            }
          })
        }
        isWoken = false
      },
      end: () => {
        this.#wakes.remove(hypervisor, wake)
      },
    }
  }

  /** Wakes the requests of a hypervisor. An empty name wakes those of all hypervisors. */
  wake(hypervisor: string): void {
    for (const wake of hypervisor === '' ? this.#wakes.all() : this.#wakes.of(hypervisor)) wake()
  }

  /** Wakes every request. After this none waits. */
  close(): void {
    this.#isClosed = true
    this.wake('')
  }
}
