/**
 * Runs a test file of tap and counts its tests.
 *
 * A file is a program that prints TAP, so `node FILE` runs it. The runner of tap is not installed, because it starts
 * every Node process with hooks for coverage and mocks: they cost more CPU time than many tests.
 */
import { runCommand } from './command.ts'

/** The outcome of all files. `failures` has the lines to print of what failed. */
export interface TapResult {
  passed: number
  failed: number
  readonly skipped: string[]
  readonly failures: string[]
}

/** A test that takes longer fails, unless its file sets another time. */
const TEST_SECONDS = 300
/** A file that takes longer is killed. It is above the times that files set. */
const FILE_MS = 1_200_000

/** Runs a file, adds its tests to `result` and prints a line. Returns its CPU time in seconds. */
export async function runTapFile(file: string, result: TapResult): Promise<number> {
  const startedMs = performance.now()
  const { status, stdout, stderr, cpuSeconds, left } = await runCommand(
    [process.execPath, file],
    { TAP_TIMEOUT: String(TEST_SECONDS) },
    FILE_MS,
  )
  const lines = stdout.split('\n')
  const failedBefore = result.failed
  count(lines, result)
  const hasFailed = status !== 0 || left.length > 0
  if (hasFailed) {
    if (result.failed === failedBefore) result.failed += 1 // for example, it could not be loaded, or was killed
    const end = `${file} ended with ${status === undefined ? 'a signal' : String(status)}`
    result.failures.push(...failuresIn(lines), end, ...left, stderr)
  }
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(1)
  console.log(`${hasFailed ? 'not ok' : 'ok'} ${file} ${seconds} s, CPU ${cpuSeconds.toFixed(1)} s`)
  return cpuSeconds
}

/** Counts the tests at the top level of a file. A `t.test` inside a test is part of that test. */
function count(lines: readonly string[], result: TapResult): void {
  for (const line of lines) {
    const [, not, name, directive] = /^(not )?ok \d+ - (.*?)(?: # (SKIP.*|TODO.*|time=.*))?(?: \{)?$/.exec(line) ?? []
    if (name === undefined) continue
    if (directive?.startsWith('SKIP') === true || directive?.startsWith('TODO') === true)
      result.skipped.push(`${name}: ${directive.slice(5)}`)
    else if (not === undefined) result.passed += 1
    else result.failed += 1
  }
}

/** The failures in tap's output: the names of the tests around each, its line and its details. */
function failuresIn(lines: readonly string[]): string[] {
  const found: string[] = []
  const outerTests: string[] = []
  let indent: string | undefined // that of the failure whose details follow
  for (const line of lines) {
    const [, before, subtest] = /^( *)# Subtest: (.*)/.exec(line) ?? []
    if (before !== undefined && subtest !== undefined) outerTests.splice(before.length / 4, Infinity, subtest)
    const failed = /^( *)not ok /.exec(line)
    if (failed !== null) {
      indent = failed[1]!
      found.push(outerTests.slice(0, indent.length / 4).join(' > '))
    } else if (indent !== undefined && !line.startsWith(`${indent}  `)) indent = undefined
    if (indent !== undefined) found.push(line)
  }
  return found
}
