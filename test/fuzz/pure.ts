/**
 * Runs without a daemon: records, files of records and snapshots by the thousand.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { assemble } from '../../src/view/validate.ts'
import { idOfFile, loadFiles } from '../../src/store/files/source.ts'
import { diceOf, escaped } from './dice.ts'
import { RECORD_MARK } from './inputs.ts'
import { judgeRecord, strangeFile, strangeRecord } from './records.ts'
import { aSnapshotBench, TRUST } from './snapshots.ts'

/** How much was tried, how much of it was valid, and the failures. */
export interface PureReport { readonly tried: number, readonly good: number, readonly failures: readonly string[] }

const MOST_FAILURES = 10
/** Each kind of run has its own generator. */
const KINDS = { records: 1, files: 2, snapshots: 3 } as const
const USER_DATA_MAX_BYTES = 16_384

/** Mutated records through `parse`. */
export function fuzzRecords(seed: number, count: number): PureReport {
  return loop(count, 'record', seed, (n) => {
    const document = strangeRecord(diceOf(seed + KINDS.records, n))
    const { valid, wrong } = guarded(() => judgeRecord(document))
    return { good: valid, wrong, what: JSON.stringify(document) }
  })
}

/** Mutated files through the file store's reader and the gate to the view. */
export async function fuzzFiles(seed: number, count: number): Promise<PureReport> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-files-'))
  const found: Found[] = []
  try {
    for (let n = 0; n < count; n++) {
      const { ending, bytes } = strangeFile(diceOf(seed + KINDS.files, n))
      const told = /"id":"(srv-[^"]*)"/.exec(bytes.toString('latin1'))?.[1] ?? ''
      const id = idOfFile(`${told}.json`) ?? 'srv-abcde'
      const path = join(directory, id + ending)
      writeFileSync(path, bytes)
      found.push({ ...await judgeFile(directory, id), what: `${ending} ${escaped(bytes.toString('latin1'))}` })
      rmSync(path)
    }
  } finally {
    rmSync(directory, { recursive: true })
  }
  return loop(count, 'file', seed, (n) => found[n]!)
}

/** Spoiled snapshots, every other one encrypted, through the reader of a start. */
export async function fuzzSnapshots(seed: number, count: number): Promise<PureReport> {
  const [plain, encrypted] = [await aSnapshotBench(null), await aSnapshotBench(TRUST)]
  try {
    const found: Found[] = []
    for (let n = 0; n < count; n++) {
      const { served, wrong, bytes } = await (n % 2 === 0 ? plain : encrypted).judge(diceOf(seed + KINDS.snapshots, n))
      found.push({ good: served, wrong, what: escaped(bytes.toString('latin1')) })
    }
    return loop(count, 'snapshot', seed, (n) => found[n]!)
  } finally {
    plain.remove()
    encrypted.remove()
  }
}

interface Found { readonly good: boolean, readonly wrong?: string | undefined, readonly what: string }

async function judgeFile(directory: string, id: string): Promise<Omit<Found, 'what'>> {
  try {
    const loaded = await loadFiles(directory, id)
    if (loaded.kind !== 'record') return { good: false, ...loaded.kind === 'unreadable' && loaded.reason.replaceAll(id, '').includes(RECORD_MARK) && { wrong: `a reason that holds the record: ${loaded.reason}` } }
    const assembled = assemble(loaded, USER_DATA_MAX_BYTES)
    const isFaulty = 'reason' in assembled
    if (isFaulty && assembled.faults.length === 0) return { good: false, wrong: 'refused without a fault' }
    return { good: !isFaulty, wrong: judgeRecord(loaded.document).wrong }
  } catch (error) {
    return { good: false, wrong: `it threw ${String(error)}` }
  }
}

function guarded(judged: () => { valid: boolean, wrong?: string }): { valid: boolean, wrong?: string } {
  try {
    return judged()
  } catch (error) {
    return { valid: false, wrong: `it threw ${String(error)}` }
  }
}

function loop(count: number, kind: string, seed: number, judged: (n: number) => Found): PureReport {
  const failures: string[] = []
  let [good, tried] = [0, 0]
  while (tried < count && failures.length < MOST_FAILURES) {
    const found = judged(tried)
    good += Number(found.good)
    if (found.wrong !== undefined) failures.push(`${kind} ${String(tried)} of seed ${String(seed)}: ${found.wrong}\n  ${found.what.slice(0, 6_000)}`)
    tried += 1
  }
  return { tried, good, failures }
}
