/**
 * `npm run mutate`: changes the code in one place at a time and runs the tests that cover the place. A change that no
 * test notices survives.
 *
 *   npm run mutate [-- ROOM|FILE...]     all rooms; or some rooms, or files of them: imdsd/view src/imdsd/guest/share.ts
 *
 * Prints every survivor and the score of each room: killed mutants of those that a test covers. Fails if the score of a
 * room is below its floor.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { installTools } from '../support/tools.ts'

interface Room {
  /** Patterns, with commas between them. Stryker splits them there, also inside of braces. */
  readonly files: string
  readonly tests: readonly string[]
  /** The least score, in percent: what a run had, rounded down. */
  readonly floor: number
}

/** The parts of a room that need no socket, no server and no files. */
const files = (room: string, names: readonly string[]) => names.map((name) => `src/${room}/${name}.ts`).join(',')
const GUEST = ['authorize', 'connections', 'hop-limit', 'identify', 'meter', 'refusal-log', 'resolve', 'share', 'token']
const VIEW = [
  'address-index',
  'peer-lookup',
  'plan',
  'read-queue',
  'record-health',
  'store-problem',
  'validate',
  'view',
]
const STORE = ['crypto/record-cipher', 'seal', 'url']
const LIMITS = ['token-bucket', 'turn-budget']

/** What vitest covers, and the tests that are meant to notice a change there. */
const ROOMS: Readonly<Record<string, Room>> = {
  metadata: {
    files: 'src/metadata/*.ts',
    tests: ['unit/metadata/*', 'contract/*', 'unit/imdsd/view/view'],
    floor: 90,
  },
  limits: { files: files('limits', LIMITS), tests: LIMITS.map((name) => `unit/limits/${name}`), floor: 90 },
  store: { files: files('store', STORE), tests: STORE.map((name) => `unit/store/${name}`), floor: 95 },
  'imdsd/guest': { files: files('imdsd/guest', GUEST), tests: ['unit/imdsd/guest/*', 'contract/*'], floor: 95 },
  'imdsd/view': { files: files('imdsd/view', VIEW), tests: VIEW.map((name) => `unit/imdsd/view/${name}`), floor: 93 },
  'imdsd/journal': { files: 'src/imdsd/journal/journal.ts', tests: ['unit/imdsd/journal/*'], floor: 89 },
  'imdsd/firewall': { files: 'src/imdsd/firewall/*.ts', tests: ['unit/imdsd/firewall/*'], floor: 91 },
  'imdsd/config': { files: 'src/imdsd/config.ts', tests: ['unit/imdsd/config', 'unit/runtime/systemd'], floor: 95 },
}

type Status = 'Killed' | 'Timeout' | 'Survived' | 'NoCoverage' | 'Ignored' | 'CompileError' | 'RuntimeError' | 'Pending'
interface Mutant {
  readonly status: Status
  readonly mutatorName: string
  readonly replacement?: string
  readonly location: { readonly start: { readonly line: number } }
}
interface Report {
  readonly files: Readonly<Record<string, { readonly source: string; readonly mutants: readonly Mutant[] }>>
}

const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(ROOMS)
const runs = names.map((name) => {
  const room = Object.entries(ROOMS).find(
    ([key]) => key === name || name === `src/${key}.ts` || name.startsWith(`src/${key}/`),
  )
  if (room !== undefined) return { name, ...room[1], files: name.startsWith('src/') ? name : room[1].files }
  console.error(`mutate: neither a room nor a file of one: ${name}. There are ${Object.keys(ROOMS).join(', ')}.`)
  process.exit(2)
})

const stryker = `${installTools('mutation')}node_modules/.bin/stryker`
const table = runs.map(({ name, files, tests, floor }) => {
  const started = performance.now()
  const testFiles = tests.map((test) => `test/${test}.test.ts`).join(',')
  // Not Stryker's own --testFiles: with it a mutant of what runs when a file is loaded is never active.
  const env = { ...process.env, MUTATE_TESTS: testFiles }
  const { status, signal, stdout } = spawnSync(stryker, ['run', 'test/mutation/stryker.config.js', '--mutate', files], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  if (status !== 0) {
    console.error(`stryker ended with ${String(status ?? signal)}`)
    process.stdout.write(stdout)
    process.exit(1)
  }
  const report = JSON.parse(readFileSync('.stryker/report.json', 'utf8')) as Report
  const mutants = Object.values(report.files).flatMap((file) => file.mutants)
  const count = (...statuses: readonly Status[]) => mutants.filter((mutant) => statuses.includes(mutant.status)).length
  const [killed, survived] = [count('Killed', 'Timeout'), count('Survived')]
  printSurvivors(report)
  return {
    name,
    floor,
    score: (100 * killed) / Math.max(1, killed + survived),
    killed,
    timeouts: count('Timeout'),
    survived,
    uncovered: count('NoCoverage'),
    minutes: Math.round((performance.now() - started) / 6_000) / 10,
  }
})

console.log()
console.table(
  Object.fromEntries(
    table.map(({ name, score, ...rest }) => [name, { 'score %': Math.floor(score * 10) / 10, ...rest }]),
  ),
)
for (const { name, score, floor } of table) {
  if (score >= floor) continue
  console.log(`${name} is below its floor of ${floor} %`)
  process.exitCode = 1
}

function printSurvivors({ files }: Report): void {
  for (const [file, { source, mutants }] of Object.entries(files)) {
    const lines = source.split('\n')
    for (const {
      status,
      mutatorName,
      replacement = '',
      location: { start },
    } of mutants) {
      if (status !== 'Survived' && status !== 'NoCoverage') continue
      const became = replacement.replace(/\s+/g, ' ').slice(0, 100)
      console.log(
        `${status === 'Survived' ? 'survived' : 'not covered'}: ${file}:${start.line} ${mutatorName}: ${lines[start.line - 1]!.trim()}\n    -> ${became}`,
      )
    }
  }
}
