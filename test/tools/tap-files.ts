/**
 * Runs test files of tap.
 *
 * A file is a program that prints TAP, so `node FILE` runs it alone. Here, files share processes (tap-worker.ts), because
 * Node, tap and the modules of a file take more CPU time to load than many tests. A file that ends its process, or leaves
 * something behind, fails. After a file that fails, the next one gets a new process.
 *
 * The runner of tap is not installed: it starts a process with hooks for coverage and mocks for each file.
 */
import { fork, type ChildProcess } from 'node:child_process'
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FileReport } from './tap-worker.ts'

/** A process that leads a session, its temporary folder, and what it has written since its file began. */
interface Worker {
  readonly child: ChildProcess
  readonly folder: string
  text: string
}

/** A file that takes longer is killed. It is above the times that files set for their tests. */
const FILE_MS = 1_800_000
/** How long a process may take to end after the file that started it. */
const END_MS = 2_000
const WORKER = new URL('tap-worker.ts', import.meta.url)
/** A connection that its server keeps open is no fault of a file, but the next one gets another process. */
const OPEN_SOCKET = 'left in Node: TCPSocketWrap'

const workers = new Set<Worker>()
/** Those that wait for a file. */
const idle: Worker[] = []

/** SIGINT or SIGTERM to this process ends what the files have started. */
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => {
    for (const worker of workers) endWorker(worker)
    process.kill(process.pid, signal) // without this listener, it ends the process
  })

/** Runs a file. `failures`: the lines to print, none if it passed. */
export async function runTapFile(file: string): Promise<Pick<FileReport, 'passed' | 'skipped' | 'failures'>> {
  const worker = idle.pop() ?? startWorker()
  worker.text = ''
  const { passed, skipped, failures, left } = await reportOf(worker.child, file)
  const all = [...left.map((name) => `left in Node: ${name}`), ...(await leftBy(worker))]
  const faults = [...failures, ...all.filter((line) => line !== OPEN_SOCKET)]
  if (all.length > 0 || faults.length > 0) endWorker(worker)
  else idle.push(worker)
  return { passed, skipped, failures: faults.length === 0 ? [] : [...faults, worker.text] }
}

/** Ends the processes that wait for a file. */
export function endWorkers(): void {
  for (const worker of idle.splice(0)) endWorker(worker)
}

function startWorker(): Worker {
  const folder = mkdtempSync(join(tmpdir(), 'imds-'))
  chmodSync(folder, 0o1777) // some tests run the programs as another user
  const env = { ...process.env, TAP_TIMEOUT: '0', TMPDIR: folder }
  const worker = { child: fork(WORKER, { env, detached: true, silent: true }), folder, text: '' }
  for (const stream of [worker.child.stdout!, worker.child.stderr!])
    stream.setEncoding('utf8').on('data', (text: string) => {
      worker.text += text
    })
  workers.add(worker)
  return worker
}

/** Tap tells a parent of the times that tests may take: these messages have no kind. */
async function reportOf(child: ChildProcess, file: string): Promise<FileReport> {
  const { promise, resolve } = Promise.withResolvers<FileReport>()
  const timer = setTimeout(() => child.kill('SIGKILL'), FILE_MS)
  const onMessage = (message: FileReport | { readonly kind?: undefined }) => {
    if (message.kind === 'end') resolve(message)
  }
  const onExit = (status: number | null, signal: string | null) => {
    const failures = [`it ended its process: ${signal ?? String(status)}`]
    resolve({ kind: 'end', passed: 0, skipped: [], failures, left: [] })
  }
  child.on('message', onMessage).once('exit', onExit)
  child.send(file)
  const report = await promise
  clearTimeout(timer)
  child.off('message', onMessage).off('exit', onExit)
  return report
}

/** Waits until a file has no process. Returns those that stay and the temporary files that are left, a line each. */
async function leftBy(worker: Worker): Promise<readonly string[]> {
  const processes = () => processesOf(worker).filter(({ pid }) => pid !== worker.child.pid)
  for (const startedMs = performance.now(); processes().length > 0 && performance.now() - startedMs < END_MS;)
    await sleep(20)
  return [
    ...processes().map(({ line }) => `left running: ${line}`),
    ...readdirSync(worker.folder).map((name) => `left in the temporary folder: ${name}`),
  ]
}

function endWorker(worker: Worker): void {
  for (const { pid } of processesOf(worker))
    try {
      process.kill(pid, 'SIGKILL')
    } catch {
      // it has ended
    }
  rmSync(worker.folder, { recursive: true, force: true })
  workers.delete(worker)
}

/** The processes of a session, and those that left it with its temporary folder in their environment. */
function processesOf({ child, folder }: Worker): { readonly pid: number; readonly line: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      const read = (file: string) => readFileSync(`/proc/${name}/${file}`, 'utf8')
      try {
        // proc(5): after the name in brackets come the state, the parent, the group and the session
        const [state, , , session] = read('stat')
          .replace(/^.*\) /s, '')
          .split(' ')
        if (state === 'Z' || (Number(session) !== child.pid && !read('environ').includes(folder))) return []
        return [{ pid: Number(name), line: read('cmdline').replaceAll('\0', ' ') }]
      } catch {
        return [] // it has ended
      }
    })
}
