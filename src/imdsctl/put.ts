/**
 * `imdsctl put` and `imdsctl validate`, for one record or many. Reports each record that is refused and continues with
 * the others. The exit status is the highest of all.
 */
import { isId } from '../metadata/identifiers.ts'
import { checkRecord } from '../store/check-record.ts'
import { DEFAULT_USER_DATA_BYTES, type Publisher } from '../store/open.ts'
import { publishMany, type SettledPut, type ToPublish } from '../store/publish-many.ts'
import type { PutOptions, PutRefusal } from '../store/publisher.ts'
import type { UserDataChange } from '../store/user-data.ts'
import { MAX_IN_FLIGHT, withStore, type Context } from './commands.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { failureOf, readInput, refusalOf } from './failure.ts'
import type { Output } from '../runtime/output.ts'
import { CommandReport, type Done } from './report.ts'
import { warningsOf } from './record-warnings.ts'
import { readRecords, type ReadRecord, type RecordInput } from './records.ts'

/**
 * Publishes the records of some paths, and resolves with the exit status. `userData`: a file or `-` with the user-data
 * of the only record. For a record without user-data, false means that it has none, and undefined that the user-data in
 * the store stays.
 */
export async function put(
  { store, output }: Context,
  paths: readonly string[],
  { userData, dryRun = false }: PutOptions & { readonly userData?: string | false | undefined },
): Promise<number> {
  const records = typeof userData === 'string' ? onlyRecord(paths, userData) : readRecords(paths)
  const otherwise: UserDataChange = userData === false ? 'none' : 'keep'
  const report = new CommandReport(output, 'record', 'each')
  await withStore(store, (publisher) => publishRecords({ publisher, records, otherwise, dryRun, report }))
  return report.end()
}

interface PublishRecordsParts {
  readonly publisher: Publisher
  readonly records: AsyncIterable<ReadRecord>
  /** What happens to the user-data of a record that comes without any. */
  readonly otherwise: UserDataChange
  readonly dryRun?: boolean
  readonly report: CommandReport
}

export async function publishRecords(parts: PublishRecordsParts): Promise<void> {
  const { publisher, records, otherwise, dryRun = false, report } = parts
  const drained = await publisher.fleet.drained().catch(() => new Map<string, string>()) // only for warnings
  const items = itemsOf(records, otherwise, report)
  const ended = await publishMany(publisher, items, MAX_IN_FLIGHT, { dryRun }, (item, outcome) => {
    report.add(putOutcome(item, outcome, drained, dryRun))
  })
  if (ended === 'done') return
  report.stop()
  process.stdin.destroy() // it may have the next records: an open one keeps the process running
}

/**
 * Checks the records of some paths, and the user-data that comes with them. Resolves with the exit status. Needs no
 * store.
 */
export async function validate(
  output: Output,
  paths: readonly string[],
  userDataMaxBytes = DEFAULT_USER_DATA_BYTES,
): Promise<number> {
  const report = new CommandReport(output, 'record', 'each')
  for await (const read of readRecords(paths)) {
    if (!read.ok) report.add(read.faults[0])
    else report.add(checked(read.value, userDataMaxBytes))
  }
  return report.end()
}

function checked(input: RecordInput, userDataMaxBytes: number): Done | CommandFailure {
  const { userData } = input
  const record = checkRecord(input.document, userData === 'keep' ? undefined : userData, {
    region: undefined,
    userDataMaxBytes,
  })
  if (!record.ok) return refused(input, { kind: 'invalid', faults: record.faults })
  const { id, revision } = record.value.instance
  const warnings = warningsOf(input.document)
  return {
    text: `${input.place}: valid, ${id} revision ${revision}`,
    json: { place: input.place, result: 'valid', id, revision, ...(warnings.length > 0 && { warnings }) },
  }
}

/**
 * Yields the records that can be read, and reports the others. `otherwise`: what happens to the user-data of a record
 * that comes without any.
 */
async function* itemsOf(
  records: AsyncIterable<ReadRecord>,
  otherwise: UserDataChange,
  report: CommandReport,
): AsyncGenerator<RecordInput & ToPublish> {
  for await (const read of records) {
    if (!read.ok) report.add(read.faults[0])
    else yield { ...read.value, id: idOf(read.value), userData: read.value.userData ?? otherwise }
  }
}

function putOutcome(
  input: RecordInput,
  put: SettledPut,
  drained: ReadonlyMap<string, string>,
  dryRun: boolean,
): Done | CommandFailure {
  switch (put.kind) {
    case 'published':
    case 'unchanged': {
      const { id, revision, sealedAt, hypervisors } = put.instance
      const seal = sealedAt === undefined ? '' : `, its user-data sealed since ${sealedAt}`
      const warnings = [
        ...warningsOf(input.document),
        ...put.unannounced.map(
          (name) => `no daemon has announced hypervisor ${name}: check the name (imdsctl hypervisors)`,
        ),
        ...hypervisors
          .filter((name) => drained.has(name))
          .map((name) => `hypervisor ${name} is drained: publish new instances for another one`),
      ]
      return {
        text: `${dryRun ? 'would be ' : ''}${put.kind} ${id} revision ${revision}${seal}`,
        json: {
          result: put.kind,
          ...(dryRun && { dryRun }),
          id,
          revision,
          order: put.order,
          ...(sealedAt !== undefined && { sealedAt }),
          ...(warnings.length > 0 && { warnings }),
        },
      }
    }
    case 'failed': {
      const [place, id] = [input.place, idOf(input)]
      return new CommandFailure(EXIT.unavailable, `${place}: ${id}: ${failureOf(put.error).message}`, { place, id })
    }
    default:
      return refused(input, put)
  }
}

function refused(input: RecordInput, put: PutRefusal): CommandFailure {
  const [place, id, warnings] = [input.place, idOf(input), warningsOf(input.document)]
  return refusalOf(`${place}: ${id}`, put, { place, id, ...(warnings.length > 0 && { warnings }) })
}

/** The id in an unchecked record, for messages and for the order of publishes. */
function idOf({ document }: RecordInput): string {
  const id = (document as { id?: unknown } | undefined)?.id
  return typeof id === 'string' && isId(id) ? id : '(no id)'
}

/** The only record of some paths, with its user-data from another file. */
async function* onlyRecord(paths: readonly string[], userDataPath: string): AsyncGenerator<ReadRecord> {
  if (paths.includes('-') && userDataPath === '-')
    throw new CommandFailure(EXIT.usage, 'the record and the user-data cannot both come from standard input')
  const userData = await readInput(userDataPath, (bytes) => bytes)
  const records: ReadRecord[] = []
  for await (const read of readRecords(paths)) records.push(read)
  const [read] = records
  if (read === undefined || records.length > 1)
    throw new CommandFailure(
      EXIT.usage,
      '--user-data is for one record. With many, each has its user-data in its own file or line: ' +
        'see imdsctl put --help',
    )
  if (read.ok && read.value.userData !== undefined)
    throw new CommandFailure(EXIT.usage, `${read.value.place} has its own user-data: omit --user-data`)
  yield read.ok ? { ok: true, value: { ...read.value, userData } } : read
}
