/**
 * Requests that wait for a change (contract H1). The server checks a held request whenever the view changes its
 * instance, at its time limit, when its peer closes its side, and when the daemon stops. A held request costs one timer
 * and an entry here.
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { ByOwner } from '../../limits/by-owner.ts'

const MAX_HELD = 8

/** Why a held request is checked. `ended`: its time is over, or its peer sends nothing more and may be gone. */
export type Wake = 'changed' | 'ended' | 'stop'

/** Checks a held request, and responds to it. False: it stays held, which only a change allows. */
export type HeldCheck = (wake: Wake) => boolean

interface Held {
  readonly check: HeldCheck
  /** Forgets the request. */
  readonly end: () => void
}

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
   * Holds a request until `check` responds to it, or its connection closes. A peer that has closed its side meanwhile
   * is answered at once.
   */
  hold(
    id: string,
    { request: { socket }, response }: { request: { socket: Socket }; response: ServerResponse },
    limitMs: number,
    check: HeldCheck,
  ): void {
    if (socket.readableEnded || socket.destroyed) {
      check('ended')
      return
    }
    const endNow = () => {
      held.end()
      check('ended')
    }
    const timer = setTimeout(endNow, limitMs)
    const held: Held = {
      check,
      end: () => {
        clearTimeout(timer)
        response.off('close', held.end)
        socket.off('end', endNow)
        this.#held.remove(id, held)
      },
    }
    this.#held.add(id, held)
    response.once('close', held.end)
    socket.once('end', endNow)
  }

  /** Checks the held requests of an instance after a change. */
  check(id: string): void {
    for (const held of this.#held.of(id)) {
      if (held.check('changed')) held.end()
    }
  }

  /** Ends all held requests. No other is held afterwards. */
  stop(): void {
    this.#isStopping = true
    for (const held of this.#held.all()) {
      held.end()
      held.check('stop')
    }
  }
}
