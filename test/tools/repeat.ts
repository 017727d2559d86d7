/**
 * Runs files of tap ten times beside a process for each core that computes, to find tests that depend on time:
 * `npm run test:repeat -- FILE...`. Stops at the first failure.
 */
import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { endTapWorkers, runTapFile, type TapResult } from './tap-files.ts'

const TIMES = 10

const files = process.argv.slice(2)
if (files.length === 0) {
  console.error('name the files to repeat: npm run test:repeat -- test/redis/watch.test.ts')
  process.exit(1)
}
process.env['PATH'] = `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin`
const burners = Array.from({ length: availableParallelism() }, () =>
  spawn(
    process.execPath,
    [
      '-e',
      "process.once('disconnect', () => process.exit()); setInterval(() => { for (const end = Date.now() + 100; Date.now() < end; ) ; }, 0)",
    ],
    {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'], // it ends with this process, however that ends
    },
  ),
)
const result: TapResult = { passed: 0, failed: 0, skipped: [], failures: [] }
for (let time = 0; time < TIMES && result.failed === 0; time++) {
  for (const file of files) {
    await runTapFile(file, result)
    await endTapWorkers() // a process loads a file once
  }
}
for (const burner of burners) burner.kill()
if (result.failures.length > 0) console.log(`\n${result.failures.join('\n')}`)
process.exitCode = result.failed === 0 ? 0 : 1
