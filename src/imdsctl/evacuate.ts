/**
 * `imdsctl evacuate`: moves the records of a hypervisor to others, each by its next revision. A seal stays, as with every
 * put. It can run again: records that were moved no longer name the hypervisor.
 *
 * A record with two hypervisors is in a live migration. To move it is to leave only the other one in it.
 */
import { parse } from '../metadata/record.ts'
import { EXIT } from '../runtime/exit-status.ts'
import { formatAgo } from '../runtime/ago.ts'
import { isRecent } from '../store/fleet.ts'
import type { Listed, Publisher, PutResult } from '../store/publisher.ts'
import { changeEach, type Done } from './change.ts'
import { addressOwned, withStore, type Context } from './commands.ts'
import { CommandFailure } from './failure.ts'
import { checkName, refuseBesideApi } from './hypervisors.ts'

/**
 * `to`: the hypervisors that get the records, comma-separated. `begin`: begins live migrations, so that records name
 * both hypervisors. `dryRun`: writes nothing.
 */
export interface EvacuateOptions {
  readonly to?: string
  readonly begin?: boolean
  readonly dryRun?: boolean
}

/** A writer that publishes the same instance is waited for this often. */
const ATTEMPTS = 5

/** Moves every record of a hypervisor. Resolves with the exit status, the highest of all records. */
export async function evacuate(context: Context, name: string, options: EvacuateOptions): Promise<number> {
  const targets = options.to === undefined ? [] : options.to.split(',')
  for (const one of [name, ...targets]) checkName(one)
  if (targets.includes(name)) throw new CommandFailure(EXIT.usage, `${name} cannot be evacuated to itself`)
  return withStore(context.store, async (publisher) => {
    await refuseBesideApi(publisher, `imds-api evacuate ${name}`)
    await checkTargets(publisher, targets)
    const all = await publisher.list()
    const ids = all.filter(({ hypervisors }) => hypervisors.includes(name)).map(({ id }) => id)
    const isAlone = all.some(({ hypervisors }) => hypervisors.includes(name) && hypervisors.length === 1)
    if (options.begin !== true && isAlone) await warnOfDaemon(context, publisher, name)
    const choose = leastUsed(all, targets)
    return changeEach(context, publisher, ids, (store, id) => move(store, id, name, choose, options))
  })
}

/** Throws a Failure if a target is drained or not announced: its guests would get no metadata. */
async function checkTargets(publisher: Publisher, targets: readonly string[]): Promise<void> {
  const drained = await publisher.fleet.drained()
  for (const one of targets)
    if (drained.has(one))
      throw new CommandFailure(EXIT.refused, `${one} is drained: name another, or imdsctl undrain ${one}`)
  const [unannounced] = await publisher.unannounced(targets)
  if (unannounced !== undefined)
    throw new CommandFailure(
      EXIT.refused,
      `no daemon has announced ${unannounced}: check the name (imdsctl hypervisors)`,
    )
}

/** Warns if the daemon of the hypervisor runs: guests that run there lose their metadata. */
async function warnOfDaemon({ store, output }: Context, publisher: Publisher, name: string): Promise<void> {
  if (store.url.startsWith('file:')) return // daemons announce themselves only in Redis
  const [announced] = await publisher.hypervisors([name])
  if (announced === undefined || !isRecent(announced.seenAt, Date.now())) return
  output.warn(
    `warning: the daemon of ${name} was seen ${formatAgo(announced.seenAt, Date.now())}: guests that still run there ` +
      'get 503. --begin keeps them served there until they have moved',
  )
}

/** Returns a function that chooses the target with the fewest records, and counts what it chose. */
function leastUsed(all: readonly Listed[], targets: readonly string[]): () => string | undefined {
  const used = new Map(targets.map((one) => [one, all.filter(({ hypervisors }) => hypervisors.includes(one)).length]))
  return () => {
    const [least] = [...used].sort(([, a], [, b]) => a - b)
    if (least !== undefined) used.set(least[0], least[1] + 1)
    return least?.[0]
  }
}

/**
 * Moves one record to the hypervisor that `choose` returns. Tries again if another writer has published the instance
 * meanwhile.
 */
export async function move(
  publisher: Pick<Publisher, 'get' | 'put'>,
  id: string,
  name: string,
  choose: () => string | undefined,
  { begin = false, dryRun = false }: EvacuateOptions,
): Promise<Done> {
  let target: string | undefined
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const published = await publisher.get(id)
    const unchanged = (text: string): Done => ({ json: { result: 'unchanged', id }, text })
    if (published === undefined) return unchanged(`${id} was removed meanwhile: nothing to do`)
    const parsed = parse(published.document)
    if (!parsed.ok) throw new CommandFailure(EXIT.badData, `the record of ${id} is faulty: publish a valid one`, { id })
    const { hypervisors: from, revision } = parsed.value
    if (!from.includes(name)) return unchanged(`${id} does not name ${name}: nothing to do`)
    const [other] = from.filter((one) => one !== name)
    if (begin && other !== undefined) return unchanged(`${id} names ${from.join(' and ')} already: nothing to do`)
    target ??= other ?? choose()
    if (target === undefined)
      throw new CommandFailure(EXIT.usage, `${id} names only ${name}: name a hypervisor for it with --to`, { id })
    const to = begin ? [name, target] : [other ?? target]
    const document = { ...(published.document as object), revision: revision + 1, hypervisors: to }
    const put = await publisher.put(document, 'keep', { dryRun })
    if (put.kind === 'stale') continue
    checkPublished(id, put)
    const result = begin ? 'begun' : 'moved'
    return {
      json: { result, id, ...(dryRun && { dryRun }), revision: revision + 1, from, to },
      text: `${dryRun ? 'would be ' : ''}${result} ${id} from ${from.join(' and ')} to ${to.join(' and ')} at revision ${String(revision + 1)}`,
    }
  }
  throw new CommandFailure(EXIT.refused, `another writer keeps changing ${id}: run this again`, { id })
}

/** Throws a Failure unless the record was published. */
function checkPublished(id: string, put: PutResult): void {
  if (put.kind === 'address-owned') throw new CommandFailure(EXIT.refused, `${id}: ${addressOwned(put)}`, { id })
  if (put.kind === 'invalid')
    throw new CommandFailure(
      EXIT.badData,
      `${id} cannot be published again: ${put.faults.map(({ path, message }) => `${path} ${message}`).join('; ')}`,
      { id },
    )
}
