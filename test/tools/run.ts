/**
 * Runs the seeded world, vitest and tap, and prints a summary.
 *
 *   npm test                  all but the long files: every guarantee of the contract and of the API
 *   npm run test:all          the long files, which `npm test` leaves out
 *   npm test -- PATTERN...    the test files whose path contains a pattern, long or not
 *   npm test -- --learn       as `npm test`, and writes how long each part took into weights.json
 *
 * As root, it installs the Debian packages that the tests need. Otherwise it prints the command that installs them.
 * Tests whose package is missing are skipped and listed at the end.
 */
import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { missingPackages } from '../support/packages.ts'
import { buildInto } from '../support/programs/imds.ts'
import { startSharedPostgres } from '../support/programs/shared-postgres.ts'
import { runCommand } from './command.ts'
import { ROOT } from './documents.ts'
import { runTasks, type Task, type Weight } from './schedule.ts'
import { newSeeds } from './new-seeds.ts'
import { endTapWorkers, runTapFile, type TapResult } from './tap-files.ts'

/**
 * The files of tap that only `npm run test:all` runs: they take long or need much of other programs, and what the contract
 * and the API promise is in other files too.
 */
const LONG = [
  /^test\/faults\//,
  /^test\/clients\/(?!cloud-init\.)/,
  /^test\/imdsd\/(ansible|compose|deploy|doctor|documented-failures|examples|firewall-counters|firewall-keeping|firewall-table|firewall-traffic|fuzz|image|installation|migration|networks|outputs|packages|region-in-an-hour|release|status-page|systemd|systemd-kill)\./,
  /^test\/imds-api\/(dashboards|demo|docs|docs-pages|doctor|fleet-commands|openapi|plans|properties|publisher-world|restore|status-page|systemd)\./,
  /^test\/redis\/(fleet-changes|odd-replies|shapes-\w+)\./,
]
/** The task that makes what the files of tap use. */
const PREPARE = 'prepare'
const WEIGHTS = `${ROOT}test/tools/weights.json`
/** New seeds of the world, and as many others for the long run: half a minute of CPU time each. */
const WORLD_SEEDS = 150
/** A file system in memory, and the room that a run needs there. */
const [MEMORY, MEMORY_BYTES] = ['/dev/shm', 4 * 1024 ** 3]
/** The world and vitest take longer only if something is wrong. */
const CHECK_MS = 900_000

const result: TapResult = { passed: 0, failed: 0, skipped: [], failures: [] }
const options = process.argv.slice(2).filter((argument) => argument.startsWith('--'))
const patterns = process.argv.slice(2).filter((argument) => !argument.startsWith('--'))
const runsLong = options.includes('--long')
const isPart = patterns.length > 0
const vitestFiles = runsLong ? [] : matchingFiles('unit', 'contract')
const tapFiles = matchingFiles('faults', 'imdsd', 'clients', 'redis', 'imds-api').filter(
  (file) => patterns.length > 0 || LONG.some((long) => long.test(file)) === runsLong,
)
if (vitestFiles.length + tapFiles.length === 0) {
  console.error(`no path of a test file contains ${patterns.join(' or ')}`)
  process.exit(1)
}
if (hasMemory()) process.env['TMPDIR'] ??= MEMORY
const directory = mkdtempSync(join(tmpdir(), 'imds-test-'))
chmodSync(directory, 0o755) // some tests run the programs as another user

process.env['PATH'] = [process.env['PATH'], '/usr/sbin', '/sbin'].join(delimiter)
installPackages()
const servers: { stop(): Promise<void> }[] = []
const weights = new Map(Object.entries(JSON.parse(readFileSync(WEIGHTS, 'utf8')) as Record<string, Weight>))
const taken = await runTasks(
  [
    ...(patterns.length === 0 || patterns.includes('world')
      ? [check('world', ['npm', 'run', '-s', 'world', '--', ...newSeeds(WORLD_SEEDS, runsLong ? WORLD_SEEDS : 0)])]
      : []),
    ...(vitestFiles.length > 0 ? [vitest(join(directory, 'vitest.json'))] : []),
    ...(tapFiles.length > 0 ? [{ name: PREPARE, run: prepareTap }] : []),
    ...tapFiles.map((file): Task => ({ name: file, after: PREPARE, run: () => runTapFile(file, result) })),
  ],
  weights,
)
await endTapWorkers()
for (const server of servers) await server.stop()
rmSync(directory, { recursive: true })
if (options.includes('--learn')) writeWeights(new Map([...weights, ...taken]))

const { passed, failed, skipped, failures } = result
if (failures.length > 0) console.log(`\n${failures.join('\n')}`)
if (skipped.length > 0) console.log(`\nSkipped:\n${skipped.map((line) => `  ${line}`).join('\n')}`)
console.log(`\n${passed} passed, ${failed} failed${skipped.length > 0 ? `, ${skipped.length} skipped` : ''}`)
process.exitCode = failed === 0 ? 0 : 1

/** The test files in some folders that the arguments ask for. */
function matchingFiles(...folders: string[]): string[] {
  return folders
    .flatMap((folder) => globSync(`test/${folder}/**/*.test.ts`).toSorted())
    .filter((file) => patterns.length === 0 || patterns.some((pattern) => file.includes(pattern)))
}

/**
 * Whether temporary files can be in memory. On ext4 it takes longer to make a file the more were deleted shortly before,
 * and each database of a test has 300.
 */
function hasMemory(): boolean {
  const [, options] = / \/dev\/shm tmpfs (\S+)/.exec(readFileSync('/proc/mounts', 'utf8')) ?? []
  if (options === undefined || options.includes('noexec')) return false
  const { bavail, bsize } = statfsSync(MEMORY)
  return bavail * bsize >= MEMORY_BYTES
}

function run(command: string, args: readonly string[]): boolean {
  console.log(`\n> ${command} ${args.join(' ')}`)
  return spawnSync(command, args, { stdio: 'inherit' }).status === 0
}

function installPackages(): void {
  const missing = missingPackages()
  if (missing.length === 0) return
  const install = ['install', '-y', '--no-install-recommends', ...missing]
  if (process.getuid?.() === 0 && spawnSync('apt-get', ['--version']).status === 0) {
    process.env['DEBIAN_FRONTEND'] = 'noninteractive'
    if (run('apt-get', ['update', '-qq']) && run('apt-get', [...install, '-qq'])) return
  }
  console.log(`\nSome tests need packages that are not here. As root: apt-get update && apt-get ${install.join(' ')}`)
}

function check(name: string, command: readonly string[]): Task {
  return {
    name,
    run: async () => {
      const { status, stdout, stderr, cpuSeconds } = await runCommand(command, {}, CHECK_MS)
      if (status === 0) result.passed += 1
      else {
        result.failed += 1
        result.failures.push(`${name} failed`, stdout, stderr)
      }
      console.log(`${status === 0 ? 'ok' : 'not ok'} ${name}, CPU ${cpuSeconds.toFixed(1)} s`)
      return cpuSeconds
    },
  }
}

/** The files of vitest, in one process: beside it run others. */
function vitest(report: string): Task {
  const args = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`, '--maxWorkers=1']
  return {
    name: 'vitest',
    run: async () => {
      const { status, stdout, stderr, cpuSeconds, left } = await runCommand(
        ['vitest', 'run', ...args, ...(isPart ? vitestFiles : [])],
        {},
        CHECK_MS,
      )
      const { passed, failed, skipped } = existsSync(report) ? testsIn(report) : { passed: 0, failed: 0, skipped: [] }
      result.passed += passed
      result.skipped.push(...skipped)
      // one that fails without a failed test is a failure: for example, a file that cannot be loaded
      const hasFailed = status !== 0 || left.length > 0
      result.failed += failed === 0 && hasFailed ? 1 : failed
      if (hasFailed) result.failures.push('vitest failed', ...left, stdout, stderr)
      console.log(`${hasFailed ? 'not ok' : 'ok'} vitest, CPU ${cpuSeconds.toFixed(1)} s`)
      return cpuSeconds
    },
  }
}

/** The tests in a report of vitest. */
function testsIn(report: string): { passed: number; failed: number; skipped: readonly string[] } {
  interface Test {
    readonly status: string
    readonly fullName: string
  }
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as { testResults: { assertionResults: Test[] }[] }
  const tests = testResults.flatMap(({ assertionResults }) => assertionResults)
  const of = (status: string) => tests.filter((test) => test.status === status).length
  const skipped = tests.filter(({ status }) => status !== 'passed' && status !== 'failed')
  return { passed: of('passed'), failed: of('failed'), skipped: skipped.map(({ fullName }) => fullName) }
}

/** Makes once what many files of tap use: databases, and the built programs. Returns how long it took: on one core. */
async function prepareTap(): Promise<number> {
  const startedMs = performance.now()
  const postgres = await startSharedPostgres(join(directory, 'postgres'))
  process.env['IMDS_TEST_POSTGRES'] = postgres.url
  servers.push(postgres)
  process.env['NODE_COMPILE_CACHE'] = join(directory, 'compiled')
  process.env['IMDS_TEST_BUILD'] = buildPrograms(join(directory, 'programs'))
  return (performance.now() - startedMs) / 1000
}

/** Builds the programs once for all tests: a built program starts faster (support/programs/imds.ts). */
function buildPrograms(root: string): string {
  const dist = join(root, 'dist')
  mkdirSync(dist, { recursive: true })
  writeFileSync(join(root, 'package.json'), '{ "type": "module" }')
  buildInto(dist)
  return dist
}

function writeWeights(all: ReadonlyMap<string, Weight>): void {
  const rounded = [...all]
    .filter(([name]) => !name.startsWith('test/') || globSync(name).length > 0)
    .map(([name, { wall, cpu }]) => [name, { wall: Math.ceil(wall), cpu: Math.ceil(cpu) }] as const)
    .sort(([a], [b]) => (a < b ? -1 : 1))
  const lines = rounded.map(([name, weight]) => `  ${JSON.stringify(name)}: ${JSON.stringify(weight)}`)
  writeFileSync(WEIGHTS, `{\n${lines.join(',\n')}\n}\n`)
}
