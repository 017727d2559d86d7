/**
 * The runner of the test files (test/tools/tap-files.ts).
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'

/** A test file that leaves a file, and a process running, which has its output and a session of its own. */
const FILE = `
import { spawn } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
const child = spawn('sleep', ['600'], { stdio: 'inherit', detached: true })
writeFileSync(tmpdir() + '/a-file', '')
writeFileSync(import.meta.dirname + '/pid', String(child.pid))
console.log('TAP version 14\\nok 1 - a test\\n1..1')
if (process.env.WAITS === undefined) process.exit()
`

/** Runs FILE by the runner, as `npm test` does. */
function startRunner(file: string, env: Readonly<Record<string, string>>) {
  const runner = new URL('../tools/tap-files.ts', import.meta.url).href
  const program = `
    import { runTapFile } from '${runner}'
    const result = { passed: 0, failed: 0, skipped: [], failures: [] }
    await runTapFile('${file}', result)
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
    return !readFileSync(`/proc/${String(pid)}/stat`, 'utf8').includes(') Z ')
  } catch {
    return false
  }
}

t.test('a test file that leaves a process or a temporary file fails; the process ends with it', async (t) => {
  const directory = testDirectory(t, { 'file.mjs': FILE })
  const runner = startRunner(join(directory, 'file.mjs'), {})
  const output = Buffer.concat((await runner.stdout.toArray()) as Buffer[]).toString()
  t.match(output, 'passed: 1')
  t.match(output, 'failed: 1')
  t.match(output, 'left running: sleep 600')
  t.match(output, 'left in the temporary folder: a-file')
  t.not(pidIn(directory), 0)
  await until(() => !runs(pidIn(directory)), 'the end of the process')
})

t.test('SIGTERM to the run ends what its test files have started', async (t) => {
  const directory = testDirectory(t, { 'file.mjs': FILE })
  const runner = startRunner(join(directory, 'file.mjs'), { WAITS: '1' })
  await until(() => pidIn(directory) !== 0, 'the process')
  t.ok(runs(pidIn(directory)))
  runner.kill('SIGTERM')
  t.same(await once(runner, 'exit'), [null, 'SIGTERM'])
  await until(() => !runs(pidIn(directory)), 'the end of the process')
})
