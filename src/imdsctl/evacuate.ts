/**
 * `imdsctl evacuate`: moves the records of a hypervisor to others, each by its next revision. A seal stays, as with every
 * put. It can run again: records that were moved no longer name the hypervisor.
 *
 * A record with two hypervisors is in a live migration. A move leaves only the other hypervisor in it.
 */
import type { Instance } from '../metadata/instance.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Listed, Publisher } from '../store/publisher.ts'
import { withStore, type Context } from './commands.ts'
import { checkName, refuseBesideApi, seenLately } from './hypervisors.ts'
import { CommandReport, type Done } from './report.ts'
import { republish, type Republished } from './republish.ts'

/**
 * `to`: the hypervisors that get the records, comma-separated. `begin`: begins live migrations, so that records name
 * both hypervisors. `dryRun`: writes nothing.
 */
export interface EvacuateOptions {
  readonly to?: string
  readonly begin?: boolean
  readonly dryRun?: boolean
}

/** Moves every record of a hypervisor. Resolves with the exit status, the highest of all records. */
export async function evacuate(context: Context, name: string, options: EvacuateOptions): Promise<number> {
  const targets = options.to === undefined ? [] : options.to.split(',')
  for (const hypervisor of [name, ...targets]) checkName(hypervisor)
  if (targets.includes(name)) throw new CommandFailure(EXIT.usage, `${name} cannot be evacuated to itself`)
  return withStore(context.store, async (publisher) => {
    await refuseBesideApi(publisher, `imds-api evacuate ${name}`)
    await checkTargets(publisher, targets)
    const all = await publisher.list()
    const ids = all.filter(({ hypervisors }) => hypervisors.includes(name)).map(({ id }) => id)
    const isAlone = all.some(({ hypervisors }) => hypervisors.includes(name) && hypervisors.length === 1)
    if (options.begin !== true && isAlone) await warnOfDaemon(context, publisher, name)
    const choose = leastUsed(all, targets)
    const report = new CommandReport(context.output, 'instance', 'each')
    await report.addEach(ids, (id) => move(publisher, id, name, choose, options))
    return report.end()
  })
}

/** Throws a Failure if a target is drained or not announced: its guests would get no metadata. */
async function checkTargets(publisher: Publisher, targets: readonly string[]): Promise<void> {
  const drained = await publisher.fleet.drained()
  for (const hypervisor of targets)
    if (drained.has(hypervisor))
      throw new CommandFailure(EXIT.refused, `${hypervisor} is drained: name another, or imdsctl undrain ${hypervisor}`)
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
  const seen = await seenLately(publisher, name)
  if (seen === undefined) return
  output.warn(
    `warning: the daemon of ${name} was seen ${seen}: guests that still run there get 503. ` +
      '--begin keeps them served there until they have moved',
  )
}

/** Returns a function that chooses the target with the fewest records, and counts what it chose. */
function leastUsed(all: readonly Listed[], targets: readonly string[]): () => string | undefined {
  const used = new Map(
    targets.map((hypervisor) => [hypervisor, all.filter(({ hypervisors }) => hypervisors.includes(hypervisor)).length]),
  )
  return () => {
    const [least] = [...used].sort(([, a], [, b]) => a - b)
    if (least !== undefined) used.set(least[0], least[1] + 1)
    return least?.[0]
  }
}

/** Moves one record to the hypervisor that `choose` returns. */
async function move(
  publisher: Publisher,
  id: string,
  name: string,
  choose: () => string | undefined,
  { begin = false, dryRun = false }: EvacuateOptions,
): Promise<Done> {
  const unchanged = (text: string): Done => ({ json: { result: 'unchanged', id }, text: `${text}: nothing to do` })
  let target: string | undefined
  const change = ({ hypervisors: from, revision }: Instance): Republished<Done> => {
    if (!from.includes(name)) return { result: unchanged(`${id} does not name ${name}`) }
    const [other] = from.filter((hypervisor) => hypervisor !== name)
    if (begin && other !== undefined) return { result: unchanged(`${id} names ${from.join(' and ')} already`) }
    target ??= other ?? choose()
    if (target === undefined)
      throw new CommandFailure(EXIT.usage, `${id} names only ${name}: name a hypervisor for it with --to`, { id })
    const to = begin ? [name, target] : [other ?? target]
    const result = begin ? 'begun' : 'moved'
    return {
      fields: { hypervisors: to },
      result: {
        json: { result, id, ...(dryRun && { dryRun }), revision: revision + 1, from, to },
        text: `${dryRun ? 'would be ' : ''}${result} ${id} from ${from.join(' and ')} to ${to.join(' and ')} at revision ${revision + 1}`,
      },
    }
  }
  try {
    return await republish(publisher, id, change, { dryRun })
  } catch (error) {
    if (!(error instanceof CommandFailure) || error.status !== EXIT.notFound) throw error
    return unchanged(`${id} was removed meanwhile`)
  }
}
