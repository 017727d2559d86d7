/**
 * Runs the seeded world, vitest and tap, and prints a summary.
 *
 *   npm test                  all but the long files: every guarantee of the contract and of the API
 *   npm run test:all          the long files, which `npm test` leaves out
 *   npm test -- PATTERN...    the test files whose path contains a pattern, long or not
 *
 * As root, it installs the Debian packages that the tests need. Otherwise it prints the command that installs them.
 * Tests whose package is missing are skipped and listed at the end.
 */
import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import '../../vitest.config.ts' // refuses an older Node
import { missingPackages } from '../support/packages.ts'
import { buildInto } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { startSharedPostgres } from '../support/programs/shared-postgres.ts'
import { isLong } from './long.ts'
import { newSeeds } from './new-seeds.ts'
import { endWorkers, runTapFile } from './tap-files.ts'

/** New seeds of the world, and further ones for the long run: 0.3 s of CPU time each. */
const [WORLD_SEEDS, LONG_SEEDS] = [30, 270]
/** Most files wait more than they compute. */
const LANES = 2 * availableParallelism()
/** A file system in memory, and the room that a run needs there. */
const [MEMORY, MEMORY_BYTES] = ['/dev/shm', 4 * 1024 ** 3]
/** The world and vitest take longer only if something is wrong. */
const CHECK_SECONDS = 900

const runsLong = process.argv.includes('--long')
const patterns = process.argv.slice(2).filter((argument) => !argument.startsWith('--'))
const vitestFiles = runsLong ? [] : matchingFiles('unit', 'contract')
const tapFiles = matchingFiles('faults', 'imdsd', 'clients', 'redis', 'imds-api').filter(
  (file) => patterns.length > 0 || isLong(file) === runsLong,
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

const failures: string[] = []
const skipped: string[] = []
let passed = 0
const world = [
  'npm',
  'run',
  '-s',
  'world',
  '--',
  ...(runsLong ? newSeeds(LONG_SEEDS, WORLD_SEEDS) : newSeeds(WORLD_SEEDS, 0)),
]
const vitest = ['vitest', 'run', '--maxWorkers=1', ...(patterns.length > 0 ? vitestFiles : [])]
const prepared = tapFiles.length > 0 ? prepareTap() : undefined
const tasks = [
  ...(patterns.length === 0 ? [() => check('world', world)] : []),
  ...(vitestFiles.length > 0 ? [() => check('vitest', vitest)] : []),
  // a long file takes longer: no lane waits for it at the end
  ...tapFiles.toSorted((a, b) => statSync(b).size - statSync(a).size).map((file) => () => checkFile(file)),
]
await Promise.all(
  Array.from({ length: LANES }, async () => {
    for (let task = tasks.shift(); task !== undefined; task = tasks.shift()) await task()
  }),
)
endWorkers()
await (await prepared)?.stop()
rmSync(directory, { recursive: true })

if (failures.length > 0) console.log(`\n${failures.join('\n')}`)
if (skipped.length > 0) console.log(`\nSkipped:\n${skipped.map((line) => `  ${line}`).join('\n')}`)
console.log(
  `\ntap: ${passed} passed${skipped.length > 0 ? `, ${skipped.length} skipped` : ''}; ${failures.length} failed`,
)
process.exitCode = failures.length === 0 ? 0 : 1

/** The test files in some folders that the arguments ask for. */
function matchingFiles(...folders: string[]): string[] {
  return folders
    .flatMap((folder) => globSync(`test/${folder}/**/*.test.ts`))
    .filter((file) => patterns.length === 0 || patterns.some((pattern) => file.includes(pattern)))
}

/** Runs a command. The end of its output has its figures. */
async function check(name: string, command: readonly string[]): Promise<void> {
  const { status, stdout, stderr } = await run(['timeout', String(CHECK_SECONDS), ...command])
  if (status !== 0) failures.push(`${name}\n${stdout.toString()}${stderr}`)
  const figures = stdout.toString().trimEnd().split('\n').slice(-5).join('\n')
  console.log(`${status === 0 ? 'ok' : 'not ok'} ${name}\n${figures}`)
}

async function checkFile(file: string): Promise<void> {
  await prepared
  const startedMs = performance.now()
  const ran = await runTapFile(file)
  passed += ran.passed
  skipped.push(...ran.skipped)
  if (ran.failures.length > 0) failures.push(`${file}\n${ran.failures.join('\n')}`)
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(1)
  console.log(`${ran.failures.length === 0 ? 'ok' : 'not ok'} ${file} ${seconds} s`)
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

function installPackages(): void {
  const missing = missingPackages()
  if (missing.length === 0) return
  const install = ['install', '-y', '--no-install-recommends', ...missing]
  if (process.getuid?.() === 0 && spawnSync('apt-get', ['--version']).status === 0) {
    process.env['DEBIAN_FRONTEND'] = 'noninteractive'
    const succeeds = (...args: string[]) => spawnSync('apt-get', args, { stdio: 'inherit' }).status === 0
    if (succeeds('update', '-qq') && succeeds(...install, '-qq')) return
  }
  console.log(`\nSome tests need packages that are not here. As root: apt-get update && apt-get ${install.join(' ')}`)
}

/** Makes once what many files of tap use: databases, and the built programs. Returns the server of the databases. */
async function prepareTap(): Promise<{ stop(): Promise<void> }> {
  const postgres = await startSharedPostgres(join(directory, 'postgres'))
  process.env['IMDS_TEST_POSTGRES'] = postgres.url
  process.env['NODE_COMPILE_CACHE'] = join(directory, 'compiled')
  process.env['IMDS_TEST_BUILD'] = buildPrograms(join(directory, 'programs'))
  return postgres
}

/** Builds the programs once for all tests: a built program starts faster (support/programs/imds.ts). */
function buildPrograms(root: string): string {
  const dist = join(root, 'dist')
  mkdirSync(dist, { recursive: true })
  writeFileSync(join(root, 'package.json'), '{ "type": "module" }')
  buildInto(dist)
  return dist
}
