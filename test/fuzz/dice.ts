/**
 * Random choices that a seed repeats. Every input of a run has its own generator, so that it can be repeated without the others.
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
