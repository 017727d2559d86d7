/** How long imdsctl takes to import and export a region. */
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

export const importExport: Part = async ({ built, redisUrl, effort }) => {
  const count = effort.seconds > 2 ? 10_000 : 2_000
  const directory = mkdtempSync(join(tmpdir(), 'imds-bench-'))
  const redis = new Redis(redisUrl)
  const imdsctl = (...args: readonly string[]) => {
    const startedMs = performance.now()
    const program = join(dirname(built.main), 'imdsctl.js')
    execFileSync('taskset', ['-c', SERVER_CORE, process.execPath, program, ...args], {
      env: { PATH: process.env['PATH'], IMDS_STORE: redisUrl, IMDS_REGION: REGION },
      stdio: 'ignore',
    })
    return performance.now() - startedMs
  }
  try {
    const records = join(directory, 'records')
    mkdirSync(records)
    for (let position = 0; position < count; position++) {
      writeFileSync(join(records, `${idOf(position)}.json`), JSON.stringify(recordOf(position, REGION, 1)))
      writeFileSync(join(records, `${idOf(position)}.user-data`), userDataOf(position))
    }
    const times = { first: [] as number[], again: [] as number[], export: [] as number[] }
    for (let round = 0; round < effort.rounds; round++) {
      await redis.flushall()
      await redis.set(keysOf(REGION).announcement(HYPERVISOR), '{}')
      times.first.push(imdsctl('import', records))
      times.again.push(imdsctl('import', records))
      // its files are deleted at the end: deleting them would slow down the next run
      times.export.push(imdsctl('export', join(directory, `export-${round}`)))
    }
    const row = (what: string, ms: readonly number[]) => [
      what,
      (median(ms) / 1000).toFixed(1),
      ((count / median(ms)) * 1000).toFixed(0),
    ]
    return [
      {
        title: `Import and export of ${count} records with 1 KiB of user-data each`,
        columns: ['', 's', 'records/s'],
        rows: [
          row('import of a directory', times.first),
          row('the same again: all unchanged', times.again),
          row('export', times.export),
        ],
        notes: ['Medians, with the start of the process. The command has a core; Redis has the other.'],
      },
    ]
  } finally {
    redis.disconnect()
    rmSync(directory, { recursive: true })
  }
}
