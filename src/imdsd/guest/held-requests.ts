/**
 * Requests that wait for a change (contract H1). A held request is woken when the view changes its instance, at its time
 * limit, when its peer closes its side, and when the daemon stops. It costs one timer and an entry here.
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { ByOwner } from '../../limits/by-owner.ts'

const MAX_HELD = 8

/** Why a held request is woken. `ended`: its time is over, or its peer sends nothing more and may be gone. */
export type Wake = 'changed' | 'ended' | 'stop'

/** Wakes a request. */
type Held = (why: Wake) => void

export class HeldRequests {
  readonly #held = new ByOwner<Held>()
  #isStopping = false

  mayHold(id: string): boolean {
    return this.#held.countOf(id) < MAX_HELD
  }

  /** Whether the daemon stops: nothing is held any more. */
  get isStopping(): boolean {
    return this.#isStopping
  }

  get size(): number {
    return this.#held.size
  }

  /**
   * Holds a request until it is woken, or its connection closes. A peer that has closed its side before is answered at
   * once.
   */
  hold(
    id: string,
    { request: { socket }, response }: { request: { socket: Socket }; response: ServerResponse },
    limitMs: number,
    woken: (why: Wake) => void,
  ): void {
    if (socket.readableEnded || socket.destroyed) {
      woken('ended')
      return
    }
    const forget = () => {
      clearTimeout(timer)
      response.off('close', forget)
      socket.off('end', end)
      this.#held.remove(id, wake)
    }
    const wake = (why: Wake) => {
      forget()
      woken(why)
    }
    const end = () => wake('ended')
    const timer = setTimeout(end, limitMs)
    this.#held.add(id, wake)
    response.once('close', forget)
    socket.once('end', end)
  }

  /** Wakes the held requests of an instance after a change. */
  wake(id: string): void {
    for (const wake of this.#held.of(id)) wake('changed')
  }

  /** Wakes all held requests. No other is held afterwards. */
  stop(): void {
    this.#isStopping = true
    for (const wake of this.#held.all()) wake('stop')
  }
}
