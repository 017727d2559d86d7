/** Sends an input on a new connection: whole or in pieces, complete or not. */
import { connect } from 'node:net'
import type { Dice } from './dice.ts'

/** How an input is sent. */
export interface Plan {
  /** Offsets at which the bytes are split, and the pause at each. */
  readonly splits: readonly number[]
  readonly pauseMs: number
  /** Only the bytes before this offset are sent. */
  readonly cutAt?: number
  /** `end`: half-closes the connection. `reset`: resets it. */
  readonly then: 'end' | 'reset'
}

/**
 * Everything that was received. `broken`: the connection was reset, so responses may be lost. `stuck`: it did not end in
 * time.
 */
export interface Sent {
  readonly plan: Plan
  readonly text: string
  readonly broken: boolean
  readonly stuck: boolean
}

/** The whole input at once. */
export const WHOLE: Plan = { splits: [], pauseMs: 0, then: 'end' }
/** The daemon closes a half-closed connection at once; this is much longer, for a busy machine. */
const END_MS = 10_000

/** A plan for an input of a given length. */
export function planOf(dice: Dice, length: number): Plan {
  const splits = Array.from({ length: dice.below(5) }, () => dice.below(length + 1)).sort((a, b) => a - b)
  const cutAt = dice.below(length + 1)
  if (dice.chance(0.05)) return { splits, pauseMs: 1, cutAt, then: 'reset' }
  if (dice.chance(0.1)) return { splits: [], pauseMs: 0, cutAt, then: 'end' }
  return dice.chance(0.2) ? { splits, pauseMs: dice.pick([0, 0, 1, 5, 30]), then: 'end' } : WHOLE
}

/** Sends bytes from an address according to a plan. Never rejects. */
export async function send(port: number, from: string, bytes: string, plan: Plan): Promise<Sent> {
  return new Promise((resolve) => {
    let [text, stuck, isOver, broken] = ['', false, false, plan.then === 'reset']
    const socket = connect({ port, host: '127.0.0.1', localAddress: from, allowHalfOpen: true, noDelay: true })
    const timer = setTimeout(() => {
      stuck = true
      socket.destroy()
    }, END_MS)
    socket.setEncoding('latin1')
    socket.on('data', (chunk: string) => {
      text += chunk
    })
    socket.on('error', () => {
      broken ||= !isOver
    })
    socket.on('close', () => {
      clearTimeout(timer)
      resolve({ plan, text, broken, stuck })
    })
    socket.on('end', () => {
      isOver = true
      socket.end()
    })
    const length = plan.cutAt ?? bytes.length
    const ends = [...plan.splits.filter((at) => at < length), length]
    const step = (at: number) => {
      const end = ends.shift() ?? length
      if (!socket.writable) return
      socket.write(bytes.slice(at, end), 'latin1')
      if (ends.length > 0) setTimeout(step, plan.pauseMs, end)
      else if (plan.then === 'end') socket.end()
      else setImmediate(() => socket.resetAndDestroy())
    }
    socket.on('connect', () => step(0))
  })
}
