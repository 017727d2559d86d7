/**
 * Runs test files of tap, some at a time, and counts their tests.
 *
 * Each file is a program that prints TAP, so `node FILE` runs it. The runner of tap is not installed, because it starts
 * every Node process with hooks for coverage and mocks: they cost more CPU time than many tests.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { availableParallelism } from 'node:os'

/** The outcome of all files. `failures` has the lines to print of what failed. */
export interface TapResult {
  passed: number
  failed: number
  readonly skipped: string[]
  readonly failures: string[]
}

/** Tests wait for much, so there is work for more files than cores. */
const FILES_AT_A_TIME = availableParallelism() + 1
/** A test that takes longer fails, unless its file sets another time. */
const TEST_SECONDS = 300
/** A file that takes longer is killed. It is above the times that files set. */
const FILE_MS = 1_200_000

/** The process groups of the files that run. */
const groups = new Set<number>()

/**
 * Runs the files. Prints a line for each. A file that ends, and SIGINT or SIGTERM to this process, end all processes
 * that the files have started.
 */
export async function runTapFiles(files: readonly string[]): Promise<TapResult> {
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => {
      for (const group of groups) endGroup(group)
      process.kill(process.pid, signal) // without this listener, it ends the process
    })
  const result: TapResult = { passed: 0, failed: 0, skipped: [], failures: [] }
  const waiting = [...files]
  const work = async () => {
    for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) await runFile(file, result)
  }
  await Promise.all(Array.from({ length: FILES_AT_A_TIME }, work))
  return result
}

async function runFile(file: string, result: TapResult): Promise<void> {
  const startedMs = performance.now()
  const child = spawn(process.execPath, [file], {
    env: { ...process.env, TAP_TIMEOUT: String(TEST_SECONDS) },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: FILE_MS,
    killSignal: 'SIGKILL',
    detached: true, // its group has what it starts
  })
  groups.add(child.pid!)
  // What the file has left running keeps the output open: it ends with the group.
  child.once('exit', () => {
    endGroup(child.pid!)
  })
  const [stdout, stderr] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => Buffer.concat((await stream.toArray()) as Buffer[]).toString()),
  )
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  const lines = stdout!.split('\n')
  const failedBefore = result.failed
  count(lines, result)
  const hasFailed = child.exitCode !== 0
  if (hasFailed) {
    if (result.failed === failedBefore) result.failed += 1 // for example, it could not be loaded, or was killed
    const end = `${file} ended with ${String(child.exitCode ?? child.signalCode)}`
    result.failures.push(...failuresIn(lines), end, stderr!)
  }
  console.log(`${hasFailed ? 'not ok' : 'ok'} ${file} ${((performance.now() - startedMs) / 1000).toFixed(1)} s`)
}

function endGroup(group: number): void {
  groups.delete(group)
  try {
    process.kill(-group, 'SIGKILL')
  } catch {
    // no process is left
  }
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
