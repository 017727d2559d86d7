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

/** A finding, with its check. */
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

export const STYLES: Readonly<Record<State, Style>> = { ok: 'green', warning: 'yellow', failure: 'red' }

export function countStates(results: readonly Pick<Finding, 'state'>[]): Readonly<Record<State, number>> {
  const count = (state: State) => results.filter((result) => result.state === state).length
  return { ok: count('ok'), warning: count('warning'), failure: count('failure') }
}

/** The exit status: 0, 1 if there are warnings, 2 if there are failures. */
export function statusOf(results: readonly Pick<Finding, 'state'>[]): 0 | 1 | 2 {
  const { warning: warnings, failure: failures } = countStates(results)
  return failures > 0 ? 2 : warnings > 0 ? 1 : 0
}

/** How many results have each state, as `--json` prints it. */
export function countsOf(results: readonly CheckResult[]): Readonly<Record<'ok' | 'warnings' | 'failures', number>> {
  const { ok, warning: warnings, failure: failures } = countStates(results)
  return { ok, warnings, failures }
}

/** Prints some results, and how many of all have each state. */
export function printResults(output: Output, printed: readonly CheckResult[], all: readonly CheckResult[]): void {
  output.rows(printed.map(rowOf))
  const { ok, warning, failure } = countStates(all)
  const text = `${String(ok)} ok, ${String(warning)} ${warning === 1 ? 'warning' : 'warnings'}, ${String(failure)} ${failure === 1 ? 'failure' : 'failures'}`
  output.rows([[{ text, style: failure > 0 ? STYLES.failure : warning > 0 ? STYLES.warning : STYLES.ok }]])
}
