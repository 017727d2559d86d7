/** Fuzzes the parsers of records and files in this process, without a daemon. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { validate } from '../../src/imdsd/view/validate.ts'
import { idOfFile, loadFiles } from '../../src/store/files/load.ts'
import { diceOf, escaped } from './dice.ts'
import { RECORD_MARK } from './inputs.ts'
import { checkRecord, mutatedFile, mutatedRecord } from './records.ts'

/** The number of inputs, how many of them were valid, and the failures. */
export interface RunReport {
  readonly tried: number
  readonly good: number
  readonly failures: readonly string[]
}

const MAX_FAILURES = 10
/** Added to the seed, so that each kind of run has its own generators. */
const KINDS = { records: 1, files: 2 } as const
const MAX_USER_DATA_BYTES = 16_384

/** Passes mutated records to `parse`. */
export function fuzzRecords(seed: number, count: number): RunReport {
  return loop(count, 'record', seed, (n) => {
    const document = mutatedRecord(diceOf(seed + KINDS.records, n))
    const { valid, wrong } = guarded(() => checkRecord(document))
    return { good: valid, wrong, what: JSON.stringify(document) }
  })
}

/** Writes mutated files, reads them as the file source does, and validates them as for the view. */
export async function fuzzFiles(seed: number, count: number): Promise<RunReport> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-files-'))
  const found: Found[] = []
  try {
    for (let n = 0; n < count; n++) {
      const { ending, bytes } = mutatedFile(diceOf(seed + KINDS.files, n))
      const idInText = /"id":"(srv-[^"]*)"/.exec(bytes.toString('latin1'))?.[1] ?? ''
      const id = idOfFile(`${idInText}.json`) ?? 'srv-abcde'
      const path = join(directory, id + ending)
      writeFileSync(path, bytes)
      found.push({ ...(await checkFile(directory, id)), what: `${ending} ${escaped(bytes.toString('latin1'))}` })
      rmSync(path)
    }
  } finally {
    rmSync(directory, { recursive: true })
  }
  return loop(count, 'file', seed, (n) => found[n]!)
}

interface Found {
  readonly good: boolean
  readonly wrong?: string | undefined
  readonly what: string
}

async function checkFile(directory: string, id: string): Promise<Omit<Found, 'what'>> {
  try {
    const loaded = await loadFiles(directory, id)
    if (loaded.kind !== 'record')
      return {
        good: false,
        ...(loaded.kind === 'unreadable' &&
          loaded.reason.replaceAll(id, '').includes(RECORD_MARK) && {
            wrong: `a reason with content of the record: ${loaded.reason}`,
          }),
      }
    const record = validate(loaded, MAX_USER_DATA_BYTES)
    if (!record.ok && record.faults.length === 0) return { good: false, wrong: 'rejected without a fault' }
    return { good: record.ok, wrong: checkRecord(loaded.document).wrong }
  } catch (error) {
    return { good: false, wrong: `it threw ${String(error)}` }
  }
}

function guarded(check: () => { valid: boolean; wrong?: string }): { valid: boolean; wrong?: string } {
  try {
    return check()
  } catch (error) {
    return { valid: false, wrong: `it threw ${String(error)}` }
  }
}

/** Collects the results of a run until it has found enough failures. */
function loop(count: number, kind: string, seed: number, resultOf: (n: number) => Found): RunReport {
  const failures: string[] = []
  let [good, tried] = [0, 0]
  while (tried < count && failures.length < MAX_FAILURES) {
    const found = resultOf(tried)
    good += Number(found.good)
    if (found.wrong !== undefined)
      failures.push(`${kind} ${tried} of seed ${seed}: ${found.wrong}\n  ${found.what.slice(0, 6_000)}`)
    tried += 1
  }
  return { tried, good, failures }
}
