/**
 * What a put into a directory of files costs as the directory grows, beside the least that it has to do: a file that is
 * written, fsynced and renamed.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { FILE_SYSTEM } from '../../src/store/files/operations.ts'
import { openStore } from '../../src/store/open.ts'
import type { Part } from './bench.ts'
import { recordOf, userDataOf } from './population.ts'
import { quantile } from './report.ts'

const SIZES = [50, 1_000]
const PUTS = 200
/** The time of a put, of the first put of a process, and of the floor. */
export const files: Part = async () => {
  const rows: string[][] = []
  for (const size of SIZES) rows.push(await measure(size))
  return [
    {
      title: 'The file store',
      columns: [
        'instances',
        'put, median ms',
        'p99',
        'an fsynced file, median ms',
        'ratio of the medians',
        'first put of a process, ms',
      ],
      rows,
      notes: [
        `${PUTS} puts of one instance without user-data, each followed by the floor. Each put reads all records.`,
      ],
    },
  ]
}

async function measure(size: number): Promise<string[]> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-bench-'))
  try {
    for (let position = 0; position < size; position++) {
      const record = recordOf(position, 'gb1', 1)
      writeFileSync(join(directory, `${String(record['id'])}.json`), JSON.stringify(record))
      writeFileSync(join(directory, `${String(record['id'])}.user-data`), userDataOf(position))
    }
    await put(directory, 2)
    const firstMs = await put(directory, 3)
    const store = await openStore({ url: `file:${directory}` })
    const [puts, floors]: [number[], number[]] = [[], []]
    for (let i = 0; i < PUTS; i++) {
      puts.push(await timed(() => store.put(recordOf(0, 'gb1', 4 + i), 'none')))
      floors.push(await timed(() => floor(directory)))
    }
    await store.close()
    const [median, least] = [quantile(puts.slice(1), 0.5), quantile(floors, 0.5)]
    return [
      String(size),
      median.toFixed(1),
      quantile(puts.slice(1), 0.99).toFixed(0),
      least.toFixed(1),
      (median / least).toFixed(1),
      firstMs.toFixed(0),
    ]
  } finally {
    rmSync(directory, { recursive: true })
  }
}

/** The time of a put on a store that is opened for it. */
async function put(directory: string, revision: number): Promise<number> {
  const store = await openStore({ url: `file:${directory}` })
  const ms = await timed(() => store.put(recordOf(0, 'gb1', revision), 'none'))
  await store.close()
  return ms
}

async function floor(directory: string): Promise<void> {
  await FILE_SYSTEM.create(join(directory, '.bench.tmp'), 'x'.repeat(1024))
  await FILE_SYSTEM.rename(join(directory, '.bench.tmp'), join(directory, '.bench'))
}

async function timed(task: () => Promise<unknown>): Promise<number> {
  const startedMs = performance.now()
  await task()
  return performance.now() - startedMs
}
