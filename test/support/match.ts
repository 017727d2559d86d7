/**
 * tap's `t.match` looks only at what its pattern names: a list that goes on matches too, and `[]` matches every list.
 */
import type { Test } from 'tap'

/** Asserts that a list has these elements, in this order, and no more. */
export function matchAll(t: Test, found: readonly unknown[], patterns: readonly unknown[], message = 'these and no more'): void {
  t.equal(found.length, patterns.length, `${message}: ${JSON.stringify(found)}`)
  t.match(found, patterns, message)
}
