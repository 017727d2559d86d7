/**
 * How long imdsctl takes to import and export a region, beside a process that moves the same bytes between the same
 * files and Redis without checks.
 */
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { keysOf } from '../../src/store/redis/keys.ts'
import { Redis } from 'ioredis'
import type { Part } from './bench.ts'
import { HYPERVISOR, idOf, recordOf, userDataOf } from './population.ts'
import { SERVER_CORE } from './processes.ts'
import { median } from './report.ts'

const REGION = 'import'
const FLOOR = new URL('bare-store.ts', import.meta.url).pathname
/** Hypervisors that no daemon has announced, in the import into a new region. */
const NEW_HYPERVISORS = 500

interface Row {
  readonly what: string
  readonly floor: 'import' | 'export'
  readonly records: string
  /** What Redis has before each run. */
  readonly store: 'empty' | 'announced' | 'full'
}

const ROWS: readonly Row[] = [
  { what: 'import of a directory', floor: 'import', records: 'known', store: 'announced' },
  { what: 'the same again: all unchanged', floor: 'import', records: 'known', store: 'full' },
  { what: 'import for hypervisors without an announcement', floor: 'import', records: 'new', store: 'empty' },
  { what: 'export', floor: 'export', records: '', store: 'full' },
]

/** The time of imports and exports, and of their floors. */
export const importExport: Part = async ({ built, redisUrl, effort }) => {
  const count = effort.seconds > 2 ? 10_000 : 2_000
  const directory = mkdtempSync(join(tmpdir(), 'imds-bench-'))
  const redis = new Redis(redisUrl)
  const imdsctl = join(dirname(built.main), 'imdsctl.js')
  const port = new URL(redisUrl).port
  const run = (args: readonly string[]) => {
    const startedMs = performance.now()
    execFileSync('taskset', ['-c', SERVER_CORE, process.execPath, ...args], {
      env: { PATH: process.env['PATH'], IMDS_STORE: redisUrl, IMDS_REGION: REGION },
      stdio: ['ignore', 'ignore', 'ignore'],
    })
    return performance.now() - startedMs
  }
  const prepare = async (store: Row['store']) => {
    if (store === 'full') return
    await redis.flushall()
    if (store === 'announced') await redis.set(keysOf(REGION).announcement(HYPERVISOR), '{}')
  }
  try {
    for (const [name, hypervisorOf] of [
      ['known', () => HYPERVISOR],
      ['new', (position: number) => `new${String(position % NEW_HYPERVISORS)}`],
    ] as const) {
      mkdirSync(join(directory, name))
      for (let position = 0; position < count; position++) {
        const record = recordOf(position, REGION, 1, { hypervisor: hypervisorOf(position) })
        writeFileSync(join(directory, name, `${idOf(position)}.json`), JSON.stringify(record))
        writeFileSync(join(directory, name, `${idOf(position)}.user-data`), userDataOf(position))
      }
    }
    const rows: string[][] = []
    for (const { what, floor, records, store } of ROWS) {
      const [times, floors]: [number[], number[]] = [[], []]
      for (let round = 0; round < effort.rounds; round++) {
        await prepare(store)
        // an export's files are deleted at the end: deleting them would slow down the next run
        const place = (of: string) => join(directory, floor === 'export' ? `${of}-${String(round)}` : records)
        times.push(run([imdsctl, floor, place('imdsctl')]))
        floors.push(run([FLOOR, floor, place('bare'), port]))
      }
      const ms = median(times)
      rows.push([
        what,
        (ms / 1000).toFixed(1),
        ((count / ms) * 1000).toFixed(0),
        (median(floors) / 1000).toFixed(1),
        median(floors.map((least, round) => least / times[round]!)).toFixed(2),
      ])
    }
    return [
      {
        title: `Import and export of ${String(count)} records with 1 KiB of user-data each`,
        columns: ['', 's', 'records/s', 'floor, s', "as a share of the floor's rate"],
        rows,
        notes: [
          'Medians, with the start of the process. The floor moves the same bytes between the same files and Redis by pipelines, without checks, index or notices.',
          'The import without announcements is for 500 hypervisors. The command has a core; Redis has the other.',
        ],
      },
    ]
  } finally {
    redis.disconnect()
    rmSync(directory, { recursive: true })
  }
}
