/**
 * Sends an input on a new connection: whole or in pieces, complete or not, and with different ways to end the
 * connection.
 */
import { connect } from 'node:net'
import type { Dice } from './dice.ts'

/** How an input is sent. */
export interface Plan {
  /** Offsets at which the bytes are split, and the pause at each. */
  readonly splits: readonly number[]
  readonly pauseMs: number
  /** Only the bytes before this offset are sent. */
  readonly cutAt?: number
  /**
   * `end`: half-closes the connection. `reset`: resets it. `hold`: leaves it open, and keeps writing after the server
   * has closed its side.
   */
  readonly then: 'end' | 'reset' | 'hold'
}

/**
 * Everything that was received. `broken`: the connection was reset, so responses may be lost. `stuck`: its state when
 * it did not end in time.
 */
export interface Sent {
  readonly plan: Plan
  readonly text: string
  readonly broken: boolean
  readonly stuck?: string
}

/**
 * The daemon closes an open connection earlier: a request times out after 10 s, checked once a second, and it lingers
 * for 10 s at most.
 */
const HOLD_MS = 20_000
/** The daemon closes a half-closed connection at once; this is much longer, for a busy machine. */
const END_MS = 10_000

/** A plan for an input of a given length. Of 10,000 connections, `holds` stay open until the daemon closes them. */
export function planOf(dice: Dice, length: number, holds: number): Plan {
  const some = (most: number) =>
    Array.from({ length: dice.below(most + 1) }, () => dice.below(length + 1)).sort((a, b) => a - b)
  const kind = dice.below(10_000)
  if (kind < holds)
    return { splits: [], pauseMs: 0, cutAt: dice.chance(0.3) ? length : dice.below(length + 1), then: 'hold' }
  if (kind < 500) return { splits: some(2), pauseMs: 1, cutAt: dice.below(length + 1), then: 'reset' }
  if (kind < 1_500) return { splits: [], pauseMs: 0, cutAt: dice.below(length + 1), then: 'end' }
  if (kind < 3_500) return { splits: some(4), pauseMs: dice.pick([0, 0, 1, 5, 30]), then: 'end' }
  return { splits: [], pauseMs: 0, then: 'end' }
}

/** Sends bytes from an address according to a plan. Never rejects. */
export async function send(port: number, from: string, bytes: string, plan: Plan): Promise<Sent> {
  return new Promise((resolve) => {
    let [text, stuck] = ['', '']
    let [isOver, broken] = [false, plan.then === 'reset']
    const timers: NodeJS.Timeout[] = []
    const later = (ms: number, task: () => void) => timers.push(setTimeout(task, ms))
    const socket = connect({ port, host: '127.0.0.1', localAddress: from, allowHalfOpen: true, noDelay: true })
    const giveUp = (state: string) => {
      stuck = state
      socket.destroy()
    }
    socket.setEncoding('latin1')
    socket.on('data', (chunk: string) => {
      text += chunk
    })
    socket.on('error', () => {
      broken ||= !isOver
    })
    socket.on('close', () => {
      for (const timer of timers) clearTimeout(timer)
      resolve({ plan, text, broken, ...(stuck !== '' && { stuck }) })
    })
    socket.on('end', () => {
      isOver = true
      if (plan.then === 'hold') keepWriting()
      else socket.end()
    })
    later(plan.then === 'hold' ? HOLD_MS : END_MS, () => giveUp(isOver ? 'half-open' : 'open'))

    /** After the server has closed its side, a write fails once it has closed the other side too, as it must. */
    const keepWriting = () => {
      socket.write('x')
      later(100, keepWriting)
    }
    const ends = [...plan.splits.filter((at) => at < (plan.cutAt ?? bytes.length)), plan.cutAt ?? bytes.length]
    const step = (n: number, at: number) => {
      const end = ends[n]
      if (!socket.writable) return
      if (end !== undefined) {
        socket.write(bytes.slice(at, end), 'latin1')
        if (n + 1 === ends.length) step(n + 1, end)
        else if (plan.pauseMs === 0) setImmediate(step, n + 1, end)
        else later(plan.pauseMs, () => step(n + 1, end))
      } else if (plan.then === 'end') socket.end()
      else if (plan.then === 'reset') setImmediate(() => socket.resetAndDestroy())
    }
    socket.on('connect', () => step(0, 0))
  })
}
