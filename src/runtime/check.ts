/** What a check is, and what it finds. */
import { formatCount } from './amounts.ts'
import type { Output } from './output.ts'
import type { Cell, Style } from './terminal.ts'

/** `failure`: guests or callers notice it, or will after the next restart. `warning`: an operator has to act this week. */
export type Severity = 'failure' | 'warning'
export type State = Severity | 'ok'

/** One thing that is found. `text` is a sentence without its full stop; what is not ok has a remedy. */
export type Finding =
  | { readonly severity: 'ok'; readonly text: string }
  | { readonly severity: Severity; readonly text: string; readonly remedy: string }

/** A row of a doctor that needs root, a command or a probe. If it has nothing to look at, it finds nothing. */
export interface Check<Look> {
  readonly code: string
  readonly run: (look: Look) => Promise<readonly Finding[]> | readonly Finding[]
}

/** A result of a check, or a condition. */
export type CheckResult = Finding & { readonly code: string }

export const ok = (text: string): Finding => ({ severity: 'ok', text })
export const warning = (text: string, remedy: string): Finding => ({ severity: 'warning', text, remedy })
export const failure = (text: string, remedy: string): Finding => ({ severity: 'failure', text, remedy })

/** Runs checks at the same time. Their results are in the order of the table. A check that throws has failed. */
export async function runChecks<Look>(checks: readonly Check<Look>[], look: Look): Promise<readonly CheckResult[]> {
  const found = await Promise.all(
    checks.map(async ({ code, run }) => {
      const findings = await Promise.resolve()
        .then(() => run(look))
        .catch((error: unknown) => [failure(`cannot be checked: ${String(error)}`, 'report this')])
      return findings.map((finding): CheckResult => ({ code, ...finding }))
    }),
  )
  return found.flat()
}

export function rowOf({ code, ...finding }: CheckResult): readonly Cell[] {
  return [{ text: finding.severity, style: STYLES[finding.severity] }, code, formatFinding(finding)]
}

export function formatFinding(finding: Finding): string {
  return finding.severity === 'ok' ? finding.text : `${finding.text}. Remedy: ${finding.remedy}`
}

/** The most serious state of some findings. */
export function worstOf(findings: readonly Pick<Finding, 'severity'>[]): State {
  const isThere = (state: State) => findings.some(({ severity }) => severity === state)
  return isThere('failure') ? 'failure' : isThere('warning') ? 'warning' : 'ok'
}

const EXIT_STATUS = { ok: 0, warning: 1, failure: 2 } as const
export const STYLES: Readonly<Record<State, Style>> = { ok: 'green', warning: 'yellow', failure: 'red' }

/**
 * Prints what a command has found: the rows of a state, some of the results, and how many of all have each state. Returns
 * its exit status: 0, 1 if there are warnings, 2 if there are failures. `json`: the state, for `--json`.
 */
export function printChecks(
  output: Output,
  all: readonly CheckResult[],
  checks = all,
  rows: readonly (readonly Cell[])[] = [],
  json: object = {},
): number {
  const count = (state: State) => all.filter(({ severity }) => severity === state).length
  const [ok, warnings, failures] = [count('ok'), count('warning'), count('failure')]
  const state = worstOf(all)
  if (output.json) output.printJson({ ok, warnings, failures, ...json, checks })
  else {
    const text = `${ok} ok, ${formatCount(warnings, 'warning')}, ${formatCount(failures, 'failure')}`
    output.rows(rows)
    output.rows(checks.map(rowOf))
    output.rows([[{ text, style: STYLES[state] }]])
  }
  return EXIT_STATUS[state]
}
