/**
 * How an input gets onto the wire: whole or in pieces, cut or not, and how the sender then leaves, or does not.
 */
import { connect } from 'node:net'
import type { Dice } from './dice.ts'

/** Where the bytes are split, the pause there (ms), where they end, and how the sender closes. */
export interface Plan {
  readonly splits: readonly number[]
  readonly pauseMs: number
  readonly cutAt?: number
  /** `end`: closes its side; `reset`: gives up at once; `hold`: leaves the connection open, and writes on once the server has closed. */
  readonly then: 'end' | 'reset' | 'hold'
}

/** The responses. `broken`: the connection was reset, so that responses may be lost; `stuck`: how it failed to end in time. */
export interface Sent { readonly plan: Plan, readonly text: string, readonly broken: boolean, readonly stuck?: string }

/** Ends for certain after so long, in ms: the daemon gives a request 10 s, looks once a second, and then lingers for one; or it answers at once and lingers for 10 s. */
const HOLD_MS = 20_000
/** A connection whose sender has closed its side is over at once; this is slack for a busy machine, in ms. */
const END_MS = 10_000

/** A plan for this many bytes. Of 10,000 connections, `holds` are held open. */
export function planOf(dice: Dice, length: number, holds: number): Plan {
  const some = (most: number) => Array.from({ length: dice.below(most + 1) }, () => dice.below(length + 1)).sort((a, b) => a - b)
  const kind = dice.below(10_000)
  if (kind < holds) return { splits: [], pauseMs: 0, cutAt: dice.chance(0.3) ? length : dice.below(length + 1), then: 'hold' }
  if (kind < 500) return { splits: some(2), pauseMs: 1, cutAt: dice.below(length + 1), then: 'reset' }
  if (kind < 1_500) return { splits: [], pauseMs: 0, cutAt: dice.below(length + 1), then: 'end' }
  if (kind < 3_500) return { splits: some(4), pauseMs: dice.pick([0, 0, 1, 5, 30]), then: 'end' }
  return { splits: [], pauseMs: 0, then: 'end' }
}

/** Sends bytes from an address and gives what came back. Never rejects. */
export async function send(port: number, from: string, bytes: string, plan: Plan): Promise<Sent> {
  return new Promise((resolve) => {
    let [text, stuck] = ['', '']
    let [isOver, broken] = [false, plan.then === 'reset']
    const timers: NodeJS.Timeout[] = []
    const later = (ms: number, task: () => void) => { timers.push(setTimeout(task, ms)) }
    const socket = connect({ port, host: '127.0.0.1', localAddress: from, allowHalfOpen: true, noDelay: true })
    const give = (how: string) => {
      stuck = how
      socket.destroy()
    }
    socket.setEncoding('latin1')
    socket.on('data', (chunk: string) => { text += chunk })
    socket.on('error', () => { broken ||= !isOver })
    socket.on('close', () => {
      for (const timer of timers) clearTimeout(timer)
      resolve({ plan, text, broken, ...stuck !== '' && { stuck } })
    })
    socket.on('end', () => {
      isOver = true
      if (plan.then === 'hold') writeOn()
      else socket.end()
    })
    later(plan.then === 'hold' ? HOLD_MS : END_MS, () => { give(isOver ? 'half-open' : 'open') })

    /** The server has closed its side: it must let go of the other one too, which a write finds out. */
    const writeOn = () => {
      socket.write('x')
      later(100, writeOn)
    }
    const ends = [...plan.splits.filter((at) => at < (plan.cutAt ?? bytes.length)), plan.cutAt ?? bytes.length]
    const step = (n: number, at: number) => {
      const end = ends[n]
      if (!socket.writable) return
      if (end !== undefined) {
        socket.write(bytes.slice(at, end), 'latin1')
        if (n + 1 === ends.length) step(n + 1, end)
        else if (plan.pauseMs === 0) setImmediate(step, n + 1, end)
        else later(plan.pauseMs, () => { step(n + 1, end) })
      } else if (plan.then === 'end') socket.end()
      else if (plan.then === 'reset') setImmediate(() => { socket.resetAndDestroy() })
    }
    socket.on('connect', () => { step(0, 0) })
  })
}
