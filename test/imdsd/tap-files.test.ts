/** The runner of the test files (test/tools/tap-files.ts). */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'

/** A test file that leaves a file, a timer, and a process running, which has its output and a session of its own. */
const LEAVES = `
import { spawn } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import t from 'tap'
t.pass('a test')
const child = spawn('sleep', ['600'], { stdio: 'inherit', detached: true })
child.unref()
writeFileSync(tmpdir() + '/a-file', '')
writeFileSync(import.meta.dirname + '/pid', String(child.pid))
setInterval(() => {}, 1_000)
if (process.env.WAITS !== undefined) await new Promise(() => {})
`
/** One whose process ends in its second test. */
const EXITS = `
import t from 'tap'
t.test('before', async () => {})
t.test('exits', () => process.exit(3))
`
/** One that finds how many files its process has run before. */
const afterFiles = (count: number) => `
import t from 'tap'
t.equal(globalThis.filesRun ?? 0, ${count})
globalThis.filesRun = ${count} + 1
`

/** Runs files by the runner, as `npm test` does. */
function startRunner(files: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const runner = new URL('../tools/tap-files.ts', import.meta.url).href
  const program = `
    import { endTapWorkers, runTapFile } from '${runner}'
    const result = { passed: 0, failed: 0, skipped: [], failures: [] }
    for (const file of ${JSON.stringify(files)}) await runTapFile(file, result)
    await endTapWorkers()
    console.log(result)`
  return spawn(process.execPath, ['--input-type=module', '-e', program], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
}

const pidIn = (directory: string) => {
  try {
    return Number(readFileSync(join(directory, 'pid'), 'utf8'))
  } catch {
    return 0
  }
}

/** Whether a process runs. One that nobody has waited for is still a process, but does not run. */
function runs(pid: number): boolean {
  try {
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ')
  } catch {
    return false
  }
}

const outputOf = async (runner: ReturnType<typeof startRunner>) =>
  Buffer.concat((await runner.stdout.toArray()) as Buffer[]).toString()

t.test('a test file that leaves a process, a file or a timer fails; the process ends with it', async (t) => {
  const directory = testDirectory(t, { 'leaves.test.ts': LEAVES, 'next.test.ts': afterFiles(0) })
  const output = await outputOf(startRunner([join(directory, 'leaves.test.ts'), join(directory, 'next.test.ts')]))
  t.match(output, 'passed: 2')
  t.match(output, 'failed: 1')
  t.match(output, 'left in Node: Timeout')
  t.match(output, 'left running: sleep 600')
  t.match(output, 'left in the temporary folder: a-file')
  t.match(output, /^ok .*next\.test\.ts/m)
  t.not(pidIn(directory), 0)
  await until(() => !runs(pidIn(directory)), 'the end of the process')
})

t.test('files share a process; if one ends it, that file fails, and the next one gets a new process', async (t) => {
  const directory = testDirectory(t, {
    'first.test.ts': afterFiles(0),
    'second.test.ts': afterFiles(1),
    'exits.test.ts': EXITS,
    'next.test.ts': afterFiles(0),
  })
  const files = ['first', 'second', 'exits', 'next'].map((name) => join(directory, `${name}.test.ts`))
  const output = await outputOf(startRunner(files))
  t.strictSame(
    output.split('\n').flatMap((line) => /^((?:not )?ok) .*\/(\w+)\.test\.ts /.exec(line)?.slice(1).join(' ') ?? []),
    ['ok first', 'ok second', 'not ok exits', 'ok next'],
  )
  t.match(output, 'it ended its process: 3')
  t.match(output, 'passed: 4', 'and the test before that')
  t.match(output, 'failed: 1')
})

t.test('SIGTERM to the run ends what its test files have started', async (t) => {
  const directory = testDirectory(t, { 'leaves.test.ts': LEAVES })
  const runner = startRunner([join(directory, 'leaves.test.ts')], { WAITS: '1' })
  await until(() => pidIn(directory) !== 0, 'the process')
  t.ok(runs(pidIn(directory)))
  runner.kill('SIGTERM')
  t.same(await once(runner, 'exit'), [null, 'SIGTERM'])
  await until(() => !runs(pidIn(directory)), 'the end of the process')
})
