/**
 * `imdsctl put` and `imdsctl validate`: one record or many. Many are published on one connection with a bounded number in flight, as if
 * one after the other where the order matters. What is refused is reported and the others go on; the exit status is the highest of all.
 */
import { readFile } from 'node:fs/promises'
import { buffer } from 'node:stream/consumers'
import { isId } from '../metadata/identifiers.ts'
import type { Fault } from '../metadata/record.ts'
import { checkRecord } from '../store/check-record.ts'
import { openStore, USER_DATA_MAX_BYTES } from '../store/open.ts'
import { StoreUnavailable, type Publisher, type PutOptions, type PutResult } from '../store/publisher.ts'
import type { UserDataChange } from '../store/user-data.ts'
import { addressOwned, jsonOf, type Context } from './commands.ts'
import { EXIT, Failure } from '../runtime/failure.ts'
import { readRecords, type ReadRecord, type RecordFault, type RecordInput } from './records.ts'

/** What is in flight at once: enough to hide the round trip, and a bound on memory. */
const MOST_IN_FLIGHT = 32

/** What became of a record: its count in the summary, the exit status, lines for people, and what `--json` prints. */
interface Outcome {
  readonly kind: string
  readonly status: number
  readonly text: string
  readonly warnings?: readonly string[]
  readonly json: Readonly<Record<string, unknown>>
}

/**
 * Publishes the records of some paths. `userDataPath`: a path or `-` with the user-data of the one record; false where a record that comes
 * without user-data has none; undefined where it keeps what the store has.
 */
export async function put(
  { store, json }: Context, paths: readonly string[], userDataPath: string | false | undefined, options: Required<PutOptions>,
): Promise<void> {
  const records = typeof userDataPath === 'string' ? theOne(paths, userDataPath) : readRecords(paths)
  const otherwise: UserDataChange = userDataPath === false ? 'none' : 'keep'
  const most = store.url.startsWith('file:') ? 1 : MOST_IN_FLIGHT // files have one writer at a time
  const report = new Report(json)
  const publisher = await openStore(store)
  try {
    await putAll(publisher, records, otherwise, most, report, options)
  } finally {
    await publisher.close()
    if (paths.includes('-')) process.stdin.destroy() // it may be open still, and would keep this process
  }
  report.end()
}

/** Checks the records of some paths, and where their user-data comes with them whether it fits. Needs no store. */
export async function validate(json: boolean, paths: readonly string[], userDataMaxBytes = USER_DATA_MAX_BYTES): Promise<void> {
  const report = new Report(json)
  for await (const read of readRecords(paths)) {
    if (!read.ok) report.add(faultOutcome(read.fault))
    else report.add(checked(read.value, userDataMaxBytes))
  }
  report.end()
}

function checked(input: RecordInput, userDataMaxBytes: number): Outcome {
  const { userData } = input
  const bytes = userData instanceof Uint8Array ? userData : userData === 'none' ? null : undefined // left out: it may be in the store
  const record = checkRecord(input.document, bytes, { region: undefined, userDataMaxBytes })
  if (!record.ok) return invalid(input, record.faults)
  const { id, revision } = record.value.instance
  return { status: EXIT.done, kind: 'valid', text: `${input.place}: valid, ${id} revision ${String(revision)}`, json: { place: input.place, result: 'valid', id, revision } }
}

/**
 * Publishes records with at most `most` in flight, and ends when the store cannot be used any more, also while it waits for a record. Two
 * records of one instance are published in their order; one whose address is taken is tried again after all those before it, which may give
 * the address up.
 */
async function putAll(
  publisher: Publisher, records: AsyncIterator<ReadRecord>, otherwise: UserDataChange, most: number, report: Report, options: Required<PutOptions>,
): Promise<void> {
  const inFlight = new Set<Promise<void>>()
  const lastOf = new Map<string, Promise<void>>()
  const { promise: unavailable, resolve: stop } = Promise.withResolvers<'unavailable'>()
  for (;;) {
    if (inFlight.size >= most) await Promise.race(inFlight)
    const next = await Promise.race([unavailable, records.next()])
    if (next === 'unavailable') {
      await Promise.all(inFlight)
      report.stopped()
      return
    }
    if (next.done === true) break
    if (!next.value.ok) {
      report.add(faultOutcome(next.value.fault))
      continue
    }
    const { value } = next.value
    const id = idOf(value)
    const earlier = [...inFlight]
    const before = lastOf.get(id)
    const attempt = () => publisher.put(value.document, value.userData ?? otherwise, options)
    const work = (async () => {
      await before
      const put = await attempt()
      if (put.kind !== 'address-owned') return putOutcome(value, put, options)
      await Promise.all(earlier)
      return putOutcome(value, await attempt(), options)
    })().catch((error: unknown) => {
      if (error instanceof StoreUnavailable) stop('unavailable')
      return failed(value, error)
    }).then((outcome) => {
      report.add(outcome)
      inFlight.delete(work)
      if (lastOf.get(id) === work) lastOf.delete(id)
    })
    inFlight.add(work)
    lastOf.set(id, work)
  }
  await Promise.all(inFlight)
}

function putOutcome(input: RecordInput, put: PutResult, { dryRun }: Required<PutOptions>): Outcome {
  switch (put.kind) {
    case 'published':
    case 'unchanged': {
      const { id, revision, sealedAt } = put.instance
      const seal = sealedAt === undefined ? '' : `, its user-data sealed since ${sealedAt}`
      const warnings = put.unannounced.map((name) => `no daemon ever announced hypervisor ${name}: is the name right? (imdsctl hypervisors)`)
      return {
        kind: put.kind, status: EXIT.done, text: `${dryRun ? 'would be ' : ''}${put.kind} ${id} revision ${String(revision)}${seal}`, warnings,
        json: { result: put.kind, ...dryRun && { dryRun }, id, revision, ...sealedAt !== undefined && { sealedAt }, ...warnings.length > 0 && { warnings } },
      }
    }
    case 'invalid':
      return invalid(input, put.faults)
    case 'stale':
      return refused(input, `the store holds revision ${String(put.revision)} or removed the instance at it: publish a higher one`, jsonOf(put))
    case 'address-owned':
      return refused(input, addressOwned(put), jsonOf(put))
  }
}

function refused(input: RecordInput, message: string, details: object): Outcome {
  return notDone(input, 'refused', EXIT.refused, message, details)
}

function invalid(input: RecordInput, faults: readonly Fault[]): Outcome {
  const lines = faults.map(({ path, message }) => `\n  ${path === '' ? '(the record)' : path} ${message}`)
  return notDone(input, 'faulty', EXIT.badData, `is not a good record:${lines.join('')}`, { result: 'invalid', faults })
}

function failed(input: RecordInput, error: unknown): Outcome {
  return notDone(input, 'failed', EXIT.unavailable, error instanceof Error ? error.message : String(error), {})
}

function notDone(input: RecordInput, kind: string, status: number, message: string, details: object): Outcome {
  const id = idOf(input)
  return { kind, status, text: `${input.place}: ${id}: ${message}`, json: { place: input.place, id, error: message, ...details } }
}

function faultOutcome({ place, status, message }: RecordFault): Outcome {
  return { kind: status === EXIT.noInput ? 'unreadable' : 'faulty', status, text: `${place} ${message}`, json: { place, error: `${place} ${message}` } }
}

/** The id that an unchecked record says, for messages and to keep two of one instance in order. */
function idOf({ document }: RecordInput): string {
  const id = (document as { id?: unknown } | null | undefined)?.id
  return typeof id === 'string' && isId(id) ? id : '(no id)'
}

/** The only record of some paths, with user-data from a file of its own. */
async function* theOne(paths: readonly string[], userDataPath: string): AsyncGenerator<ReadRecord> {
  if (paths.includes('-') && userDataPath === '-') throw new Failure(EXIT.usage, 'the record and the user-data cannot both come from standard input')
  const userData = await (userDataPath === '-' ? buffer(process.stdin) : readFile(userDataPath)).catch((error: unknown) => {
    throw new Failure(EXIT.noInput, `${userDataPath} cannot be read: ${(error as Error).message}`)
  })
  const records: ReadRecord[] = []
  for await (const read of readRecords(paths)) records.push(read)
  const [read] = records
  if (read === undefined || records.length > 1) throw new Failure(EXIT.usage, '--user-data is for one record. For many, each has its user-data in a file or line of its own: see imdsctl put --help')
  if (read.ok && read.value.userData !== undefined) throw new Failure(EXIT.usage, `${read.value.place} brings its own user-data: leave out --user-data`)
  yield read.ok ? { ok: true, value: { ...read.value, userData } } : read
}

/** Prints each outcome as it comes, and for more than one record a summary; the exit status is the highest of all. */
class Report {
  readonly #json: boolean
  readonly #counts = new Map<string, number>()
  readonly #warned = new Set<string>()
  #status: number = EXIT.done

  constructor(json: boolean) {
    this.#json = json
  }

  add({ status, kind, text, warnings = [], json }: Outcome): void {
    this.#counts.set(kind, (this.#counts.get(kind) ?? 0) + 1)
    this.#status = Math.max(this.#status, status)
    if (this.#json) console.log(JSON.stringify(json))
    else if (status === EXIT.done) console.log(text)
    else console.error(`imdsctl: ${text}`)
    if (!this.#json) for (const warning of warnings) this.#warn(warning)
  }

  /** Says once what holds for many records. */
  #warn(text: string): void {
    if (this.#warned.has(text)) return
    this.#warned.add(text)
    console.error(`imdsctl: warning: ${text}`)
  }

  /** The store cannot be used any more. */
  stopped(): void {
    const message = 'the store cannot be used: stopped, and the records that follow were not tried'
    if (this.#json) console.log(JSON.stringify({ error: message }))
    else console.error(`imdsctl: ${message}`)
  }

  end(): void {
    const records = [...this.#counts.values()].reduce((sum, count) => sum + count, 0)
    if (records === 0) throw new Failure(EXIT.noInput, 'there is no record: a directory has them in files whose names end in .json, .yaml or .yml')
    if (records > 1) {
      const counts = [...this.#counts].map(([kind, count]) => `${String(count)} ${kind}`)
      console.log(this.#json ? JSON.stringify({ records, ...Object.fromEntries(this.#counts) }) : `${String(records)} records: ${counts.join(', ')}`)
    }
    process.exitCode = this.#status
  }
}
