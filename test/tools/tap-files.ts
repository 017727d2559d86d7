/**
 * Runs test files of tap and counts their tests.
 *
 * A file is a program that prints TAP, so `node FILE` runs it alone. Here, files share processes (tap-worker.ts), because
 * Node, tap and the modules of a file take more CPU time to load than many tests. A file that ends its process, or leaves
 * something behind, fails. After a file that fails, the next one gets a new process.
 *
 * The runner of tap is not installed: it starts a process with hooks for coverage and mocks for each file.
 */
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { closeSession, leftBy, startSession, type Session } from './command.ts'
import type { FileToRun, FileReport } from './tap-worker.ts'

/** The outcome of all files. `failures` has the lines to print of what failed. */
export interface TapResult {
  passed: number
  failed: number
  readonly skipped: string[]
  readonly failures: string[]
}

/** A test that takes longer fails, unless its file sets another time. */
const TEST_MS = 300_000
/** A file that takes longer is killed. It is above the times that files set. */
const FILE_MS = 1_200_000
const WORKER = new URL('tap-worker.ts', import.meta.url).pathname
/** The unit of the times in proc(5). */
const TICKS_PER_SECOND = 100

/** A connection that its server keeps open is no fault of a file, but the next one gets another process. */
const OPEN_SOCKET = 'left in Node: TCPSocketWrap'

/** The processes that wait for a file. */
const idle: Session[] = []

/** Runs a file, adds its tests to `result` and prints a line. Returns its CPU time in seconds. */
export async function runTapFile(file: string, result: TapResult): Promise<number> {
  const startedMs = performance.now()
  const worker =
    idle.pop() ?? startSession([process.execPath, WORKER], { TAP_TIMEOUT: '0' }, ['ignore', 'pipe', 'pipe', 'ipc'])
  const { tap, text, left, cpuSeconds } = await runIn(worker, file)
  const lines = tap.split('\n')
  const failedBefore = result.failed
  count(lines, result)
  const faults = left.filter((line) => line !== OPEN_SOCKET)
  if (result.failed === failedBefore && faults.length > 0) result.failed += 1
  const hasFailed = result.failed > failedBefore
  if (hasFailed) result.failures.push(file, ...failuresIn(lines), ...faults, text)
  if (hasFailed || left.length > 0) await endWorker(worker)
  else idle.push(worker)
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(1)
  console.log(`${hasFailed ? 'not ok' : 'ok'} ${file} ${seconds} s, CPU ${cpuSeconds.toFixed(1)} s`)
  return cpuSeconds
}

/** Ends the processes that wait for a file. */
export async function endTapWorkers(): Promise<void> {
  await Promise.all(idle.splice(0).map(endWorker))
}

async function endWorker(worker: Session): Promise<void> {
  worker.child.kill('SIGKILL')
  await leftBy(worker)
  closeSession(worker)
}

/** Tap tells a parent of the times that tests may take. */
interface MessageOfTap {
  readonly kind?: undefined
}

/** What a file wrote as TAP and otherwise, what it left, or how its process ended, and its CPU time. */
interface FileOutcome {
  readonly tap: string
  readonly text: string
  readonly left: readonly string[]
  readonly cpuSeconds: number
}

async function runIn(worker: Session, file: string): Promise<FileOutcome> {
  const { child } = worker
  const timer = setTimeout(() => child.kill('SIGKILL'), FILE_MS)
  let tap = ''
  let text = ''
  const addText = (chunk: Buffer) => {
    text += chunk.toString()
  }
  const outputs = [child.stdout!, child.stderr!]
  for (const output of outputs) output.on('data', addText)
  const cpuBefore = cpuSecondsOf(child.pid!)
  const { promise, resolve } = Promise.withResolvers<readonly string[]>()
  const onMessage = (report: FileReport | MessageOfTap) => {
    if (report.kind === 'output') tap += report.tap
    else if (report.kind === 'end') resolve(report.left.map((name) => `left in Node: ${name}`))
  }
  const onDisconnect = () => {
    void endOf(child).then((end) => resolve([`it ended its process: ${end}`]))
  }
  child.on('message', onMessage).on('disconnect', onDisconnect) // which is after its last message
  if (child.connected) child.send({ file, timeoutMs: TEST_MS } satisfies FileToRun)
  else onDisconnect()
  const ofNode = await promise
  const left = [...ofNode, ...(await leftBy(worker, child.pid))]
  child.off('message', onMessage).off('disconnect', onDisconnect)
  for (const output of outputs) output.off('data', addText)
  clearTimeout(timer)
  return { tap, text, left, cpuSeconds: child.exitCode === null ? cpuSecondsOf(child.pid!) - cpuBefore : 0 }
}

/** The signal or the exit status with which a process ends. */
async function endOf(child: ChildProcess): Promise<string> {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  return child.signalCode ?? String(child.exitCode)
}

/** The CPU time of a process and of its children that have ended. 0: it has ended. */
function cpuSecondsOf(pid: number): number {
  try {
    // proc(5): utime, stime, cutime and cstime; the name in brackets may have spaces
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ')
    return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / TICKS_PER_SECOND
  } catch {
    return 0
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
