/**
 * `imdsctl remove`, `seal`, `unseal`, `encrypt` and `decrypt`, for one instance or many. Continues after a failure.
 * The exit status is the highest of all.
 */
import { formatSome } from '../runtime/amounts.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { isRecent } from '../store/fleet.ts'
import { StoreUnavailable, type Publisher } from '../store/publisher.ts'
import { jsonOf, withStore, type Context } from './commands.ts'
import { checkId, readInput, refusalOf } from './failure.ts'
import { CommandReport, type Done } from './report.ts'
import { decodeText } from '../runtime/text-file.ts'

/** `file`: also the ids in this file, one per line; `-` is standard input. `dryRun`: writes nothing. */
export interface ChangeOptions {
  readonly file?: string
  readonly dryRun?: boolean
}

/** How many hypervisors are named. */
const MAX_NAMED = 10

/** Removes instances. `revision` is for a single one. */
export async function remove(
  context: Context,
  named: readonly string[],
  { revision, ...options }: ChangeOptions & { readonly revision?: number },
): Promise<number> {
  const { dryRun = false } = options
  const ids = await idsOf(named, options)
  if (revision !== undefined && ids.length > 1)
    throw new CommandFailure(EXIT.usage, '--revision is for a single instance: remove the others by another command')
  return changeAll(context, ids, async (publisher, id) => {
    const removed = await publisher.remove(id, revision, { dryRun })
    if (removed.kind === 'incarnation') throw new Error('imdsctl names no incarnation')
    if (removed.kind === 'stale') {
      throw new CommandFailure(
        EXIT.refused,
        `the store holds revision ${removed.revision} of ${id}: remove at that one or a higher one`,
        { id, ...jsonOf(removed) },
      )
    }
    if (removed.kind === 'absent') {
      throw new CommandFailure(
        EXIT.notFound,
        `the store has no ${id}; --revision leaves a tombstone for hypervisors that still serve it`,
        { id, ...jsonOf(removed) },
      )
    }
    const at = String(removed.revision)
    const tombstone = dryRun
      ? `the store has no ${id}; it would get a tombstone at revision ${at}`
      : `the store had no ${id}; its tombstone at revision ${at} makes hypervisors that still serve it stop`
    const change = `${dryRun ? 'would be ' : ''}removed ${id} at revision ${at}`
    return {
      json: { id, ...jsonOf(removed, dryRun) },
      text: removed.kind === 'removed' ? change : tombstone,
    }
  })
}

/** The command that seals the user-data of instances, so that no guest gets it from then on, or lifts the seals. */
export function changeSeals(change: 'seal' | 'unseal') {
  return async (context: Context, named: readonly string[], options: ChangeOptions): Promise<number> => {
    const { dryRun = false } = options
    return changeAll(context, await idsOf(named, options), async (publisher, id) => {
      const changed = await publisher[change](id, { dryRun })
      if (changed.kind === 'absent') throw new CommandFailure(EXIT.notFound, `the store has no ${id}`, { id })
      if (changed.kind === 'address-owned') throw refusalOf(id, changed, { id })
      const sealedAt = changed.kind === 'unsealed' ? undefined : changed.sealedAt
      const state = sealedAt === undefined ? 'is not sealed' : `has been sealed since ${sealedAt}`
      return {
        json: { id, ...jsonOf(changed, dryRun), sealedAt: sealedAt ?? null },
        text:
          changed.kind === 'unchanged'
            ? `the user-data of ${id} ${state}: nothing to do`
            : `${dryRun ? 'would be ' : ''}${changed.kind} ${id} at revision ${changed.revision}`,
      }
    })
  }
}

/** The results of `encrypt` and `decrypt` that change or keep an instance; any other is a failure. */
const NOT_CONVERTED: Readonly<Record<string, string>> = {
  absent: 'the store has no record of it',
  plain: 'it is not encrypted (--from-plain accepts it)',
}

/** `fromPlain`: encrypts plain records too. `force`: also while daemons lack the key. */
interface EncryptOptions {
  readonly fromPlain?: boolean
  readonly force?: boolean
}

/**
 * Encrypts the named instances with the first key, or all if none is named. After all instances are encrypted, marks the
 * region as encrypted, even if it has no instance.
 */
export async function encrypt(
  context: Context,
  named: readonly string[],
  { fromPlain = false, force = false }: EncryptOptions,
): Promise<number> {
  named.forEach(checkId)
  return withStore(context.store, async (publisher) => {
    if (!fromPlain && !force) await checkKeys(publisher) // plain records are encrypted before daemons have keys
    const ids = named.length > 0 ? named : await idsIn(publisher)
    const status = await convertEach(context, ids, (id) => publisher.encrypt(id, fromPlain))
    if (named.length === 0 && status === EXIT.done) await publisher.markEncrypted()
    return status
  })
}

/**
 * Throws a Failure if a daemon that runs has not announced the key that encrypts: it could not read the records. A daemon
 * without any key reads none now.
 */
async function checkKeys(publisher: Publisher): Promise<void> {
  const { recordKey } = publisher
  if (recordKey === undefined) return
  const nowMs = Date.now()
  const lacking = (await publisher.hypervisors())
    .filter(
      ({ seenAt, recordKeys: keys }) => isRecent(seenAt, nowMs) && !keys?.includes(recordKey) && keys?.length !== 0,
    )
    .map(({ name }) => name)
  if (lacking.length === 0) return
  throw new CommandFailure(
    EXIT.refused,
    `daemons have not announced the record key ${recordKey}, and could not read the records: ${formatSome(lacking, MAX_NAMED)}. Give it to them ` +
      'and restart them (docs/encryption.md#change-a-key), or use --force; for plain records, --from-plain',
    { recordKey, hypervisors: lacking },
  )
}

/** Decrypts every instance and marks the region as plain, to stop the use of record keys. */
export async function decrypt(context: Context): Promise<number> {
  return withStore(context.store, async (publisher) => {
    const ids = await idsIn(publisher)
    const status = await convertEach(context, ids, (id) => publisher.decrypt(id))
    if (status === EXIT.done) await publisher.markPlain()
    return status
  })
}

async function idsIn(publisher: Publisher): Promise<readonly string[]> {
  return (await publisher.list()).map(({ id }) => id)
}

/** Prints only what was not converted, and the counts. */
async function convertEach(
  { output }: Context,
  ids: readonly string[],
  convert: (id: string) => Promise<{ readonly kind: string }>,
): Promise<number> {
  const report = new CommandReport(output, 'instance', 'failures')
  await report.addEach(ids, async (id) => {
    const { kind: result } = await convert(id).catch((error: unknown) => {
      if (error instanceof StoreUnavailable) throw error
      throw new CommandFailure(EXIT.badData, `${id}: ${(error as Error).message}`, { id })
    })
    const reason = NOT_CONVERTED[result]
    if (reason !== undefined) throw new CommandFailure(EXIT.badData, `${id}: ${reason}`, { id, result })
    return { json: { id, result }, text: `${result} ${id}` }
  })
  return report.end()
}

/** The ids that are named, and those of the file, each once. Throws a usage Failure if one is no id, or none is given. */
async function idsOf(named: readonly string[], { file }: ChangeOptions): Promise<readonly string[]> {
  const read = file === undefined ? '' : await readInput(file, decodeText)
  const lines = read.split('\n').map((line) => line.trim())
  const ids = [...new Set([...named, ...lines.filter((line) => line !== '')])]
  if (file === undefined && ids.length === 0)
    throw new CommandFailure(EXIT.usage, 'no id: name instances, or a file of ids with --file')
  ids.forEach(checkId)
  return ids
}

/** Changes each instance. Throws a Failure if it was not changed. */
async function changeAll(
  { store, output }: Context,
  ids: readonly string[],
  change: (publisher: Publisher, id: string) => Promise<Done>,
): Promise<number> {
  const report = new CommandReport(output, 'instance', 'each')
  await withStore(store, (publisher) => report.addEach(ids, (id) => change(publisher, id)))
  return report.end()
}
