/**
 * What can be wrong with a program. Each program has a table of conditions, from which follow its log lines (watch.ts),
 * the metric imds_condition (metric.ts), /readyz, its doctor and status, its status page (page.ts), `imdsctl explain`,
 * docs/operations/conditions.md and the alert rules: no text is written twice.
 */
import type { CheckResult, Severity } from '../runtime/check.ts'

/** What a code of the log means, for people. `guests`: what they, or callers of imds-api, notice. */
export interface Meaning {
  readonly code: string
  readonly what: string
  readonly guests: string
  readonly remedy: string
}

/** A row of the table. A condition is of now: what has happened is a counter, or an event in the log. */
export interface Condition<State> extends Meaning {
  readonly severity: Severity
  /** Whether /readyz is 503 meanwhile; absent: it is not. */
  readonly isUnready?: (state: State) => boolean
  /** What is the matter, with its facts; undefined: nothing. Pure. */
  readonly found: (state: State) => string | undefined
}

/** A condition that was found. `unready`: the program is not ready because of it. */
export type FoundCondition = Extract<CheckResult, { readonly remedy: string }> & { readonly unready?: boolean }

export const always = (): boolean => true

/** Evaluates a table: failures first. */
export function findConditions<State>(table: readonly Condition<State>[], state: State): readonly FoundCondition[] {
  const all = table.flatMap(({ code, severity, remedy, isUnready, found }): FoundCondition[] => {
    const text = found(state)
    if (text === undefined) return []
    return [{ code, severity, text, remedy, ...(isUnready?.(state) === true && { unready: true }) }]
  })
  return all.toSorted((a, b) => (a.severity < b.severity ? -1 : a.severity > b.severity ? 1 : 0))
}

/** Some things of which there may be many. `first`: some of them, as texts. */
export interface SomeThings {
  readonly count: number
  readonly first: readonly string[]
}

const MAX_NAMED = 10

/** Lists things, each of which `format` makes a text of. */
export function listOf<T>(count: number, all: Iterable<T>, format: (thing: T) => string): SomeThings {
  return { count, first: count === 0 ? [] : Iterator.from(all).take(MAX_NAMED).map(format).toArray() }
}

/** `records that are faulty (2): srv-a: /id is missing; srv-b: ...`. Undefined: there are none. */
export function formatListed({ count, first }: SomeThings, what: string): string | undefined {
  if (count === 0) return undefined
  const more = count > first.length ? ['...'] : []
  return `${what} (${count}): ${[...first, ...more].join('; ')}`
}
