/** What a check is, and what it finds. */
import type { Output } from './output.ts'
import type { Cell, Style } from './terminal.ts'

/** How serious a finding is. `warning`: guests are served, and somebody should look. */
export type State = 'ok' | 'warning' | 'failure'

/** One thing that a check has found. What is not ok has a remedy. */
export type Finding =
  | { readonly state: 'ok'; readonly text: string }
  | { readonly state: 'warning' | 'failure'; readonly text: string; readonly remedy: string }

/** A row of the table of checks. A check that has nothing to look at finds nothing. */
export interface Check<State> {
  readonly name: string
  /** What must be true; continues "checks that". */
  readonly what: string
  readonly find: (look: State) => Promise<readonly Finding[]> | readonly Finding[]
}

export type CheckResult = Finding & { readonly check: string }

export const ok = (text: string): Finding => ({ state: 'ok', text })
export const warning = (text: string, remedy: string): Finding => ({ state: 'warning', text, remedy })
export const failure = (text: string, remedy: string): Finding => ({ state: 'failure', text, remedy })

/** Runs checks at the same time. Their results are in the order of the table. A check that throws has failed. */
export async function runChecks<State>(checks: readonly Check<State>[], look: State): Promise<readonly CheckResult[]> {
  const found = await Promise.all(
    checks.map(async ({ name: check, find }) => {
      const findings = await Promise.resolve()
        .then(() => find(look))
        .catch((error: unknown) => [failure(`cannot be checked: ${String(error)}`, 'report this')])
      return findings.map((finding): CheckResult => ({ check, ...finding }))
    }),
  )
  return found.flat()
}

export function rowOf({ check, ...finding }: CheckResult): readonly Cell[] {
  return [{ text: finding.state, style: STYLES[finding.state] }, check, formatFinding(finding)]
}

export function formatFinding(finding: Finding): string {
  return finding.state === 'ok' ? finding.text : `${finding.text}. Remedy: ${finding.remedy}`
}

/** The most serious state of some findings. */
export function worstOf(findings: readonly Pick<Finding, 'state'>[]): State {
  const isThere = (state: State) => findings.some((finding) => finding.state === state)
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
  const count = (state: State) => all.filter((result) => result.state === state).length
  const [ok, warnings, failures] = [count('ok'), count('warning'), count('failure')]
  const state = worstOf(all)
  if (output.json) output.printJson({ ok, warnings, failures, ...json, checks })
  else {
    const text = `${ok} ok, ${warnings} ${warnings === 1 ? 'warning' : 'warnings'}, ${failures} ${failures === 1 ? 'failure' : 'failures'}`
    output.rows(rows)
    output.rows(checks.map(rowOf))
    output.rows([[{ text, style: STYLES[state] }]])
  }
  return EXIT_STATUS[state]
}
