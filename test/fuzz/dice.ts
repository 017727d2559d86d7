/**
 * Repeatable random choices. Every input of a run has its own generator, so that one input can be repeated without the
 * others.
 */
import { random } from '../support/fixtures/generated-records.ts'

/** Pseudo-random choices. Everywhere in test/fuzz, bytes are strings with one character per byte (latin1). */
export interface Dice {
  /** A whole number, at least 0 and below `limit`. */
  below(limit: number): number
  /** True with this probability. */
  chance(probability: number): boolean
  /** An element of a list. */
  pick<T>(of: readonly T[]): T
  bytes(count: number): string
}

/** The generator of one input of a run. */
export function diceOf(seed: number, index: number): Dice {
  const next = random(Math.imul(seed, 0x9e3779b1) ^ Math.imul(index + 1, 0x85ebca6b))
  const below = (limit: number) => Math.floor(next() * limit)
  return {
    below,
    chance: (probability) => next() < probability,
    pick: (of) => of[below(of.length)]!,
    bytes: (count) => Array.from({ length: count }, () => String.fromCharCode(below(256))).join(''),
  }
}

/** Bytes as a JavaScript string literal: everything except printable ASCII is escaped. */
export function escaped(bytes: string): string {
  return `'${bytes.replace(/[^ -~]|['\\]/g, (c) => (c === '\r' ? '\\r' : c === '\n' ? '\\n' : c === "'" || c === '\\' ? `\\${c}` : `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}`))}'`
}
