/**
 * Choices that a seed repeats: every input of a run has dice of its own, so one of them can be made again without the others.
 */
import { random } from '../support/fixtures/generated-records.ts'

/** Pseudo-random choices. Bytes are texts of one character per byte (latin1), everywhere here. */
export interface Dice {
  /** A whole number from 0 to below `most`. */
  below(most: number): number
  chance(share: number): boolean
  pick<T>(of: readonly T[]): T
  bytes(count: number): string
}

/** The dice of one input of a run. */
export function diceOf(seed: number, index: number): Dice {
  const next = random(Math.imul(seed, 0x9e3779b1) ^ Math.imul(index + 1, 0x85ebca6b))
  const below = (most: number) => Math.floor(next() * most)
  return {
    below,
    chance: (share) => next() < share,
    pick: (of) => of[below(of.length)]!,
    bytes: (count) => Array.from({ length: count }, () => String.fromCharCode(below(256))).join(''),
  }
}

/** Bytes as a person and JavaScript read them: everything but printable ASCII escaped. */
export function escaped(bytes: string): string {
  return `'${bytes.replace(/[^ -~]|['\\]/g, (c) => c === '\r' ? '\\r' : c === '\n' ? '\\n' : c === '\'' || c === '\\' ? `\\${c}` : `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}`)}'`
}
