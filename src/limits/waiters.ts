/** Requests that wait for a change of something, by its name. */
import type { Socket } from 'node:net'
import { ByOwner } from './by-owner.ts'
import { Waiter } from './waiter.ts'

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

  /**
   * Reads until there is a result: again at each wake of `name`, and after `pollMs`. Undefined: there is none after
   * `waitMs`, the peer has gone, or no request may wait. It never reads for a peer that has gone.
   */
  async until<Result>(
    name: string,
    socket: Socket,
    { waitMs, pollMs }: { readonly waitMs: number; readonly pollMs: number },
    read: () => Promise<Result | undefined>,
  ): Promise<Result | undefined> {
    const untilMs = performance.now() + waitMs
    const waiter = new Waiter()
    const wake = () => waiter.wake()
    this.add(name, waiter)
    socket.once('close', wake)
    try {
      while (!socket.destroyed) {
        const result = await read()
        const leftMs = untilMs - performance.now()
        if (result !== undefined || leftMs <= 0 || this.isClosed) return result
        await waiter.wait(Math.min(leftMs, pollMs))
      }
      return undefined
    } finally {
      socket.off('close', wake)
      this.remove(name, waiter)
    }
  }
}
