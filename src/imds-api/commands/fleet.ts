/**
 * The commands for hypervisors and what runs there: `hypervisors`, `drain`, `undrain`, `evacuate` and `maintenance`.
 * Each returns its exit status.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { parseEventOptions, type EventOptions } from '../../metadata/event-options.ts'
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import { AccountChanges } from '../changes/account-changes.ts'
import { evacuateServer, findServersAmong, findServersOn, type Evacuated } from '../changes/evacuation.ts'
import { changeMaintenanceEvents, maintenanceEventsOf } from '../changes/maintenance.ts'
import { setDrained, readHypervisorUsage } from '../changes/hypervisors.ts'
import type { ApiEvacuateOptions } from './arguments.ts'
import { withDatabase, withStoreAndDatabase, type CommandParts } from './commands.ts'
import { inTransaction, type Db } from '../database/transaction.ts'
import { Refusal } from '../model/refusal.ts'
import { cellsOf, HYPERVISOR_COLUMNS, readHypervisors } from '../publish/hypervisors.ts'
import { StoreOpener } from '../publish/store-opener.ts'
import { openStore, type Publisher } from '../../store/open.ts'

/** Prints the hypervisors of the region as a table: without what daemons have announced if the store cannot be read. */
export async function listHypervisors(parts: CommandParts): Promise<number> {
  const { config, output } = parts
  const storeOpener = new StoreOpener(() => openStore(config.store))
  try {
    return await withDatabase(parts, async ({ db }) => {
      const { hypervisors, storeProblem } = await readHypervisors(db, () => storeOpener.open())
      output.table(
        HYPERVISOR_COLUMNS.map((name) => name.toUpperCase()),
        hypervisors.map((one) => cellsOf(one, Date.now())),
      )
      if (storeProblem === undefined) return EXIT.done
      output.warn(`what daemons have announced is not known: ${storeProblem}`)
      return EXIT.unavailable
    })
  } finally {
    await storeOpener.close()
  }
}

/** Drains a hypervisor, so that it gets no new servers, or ends that. */
export async function drain(parts: CommandParts, name: string, isDrained: boolean): Promise<number> {
  return withDatabase(parts, async ({ db }) => {
    const hasChanged = await inTransaction(db, (tx) => setDrained(tx, name, isDrained)).catch(asFailure)
    const state = isDrained ? 'drained: it gets no new servers' : 'not drained: it gets new servers'
    parts.output.print(`${name} is ${state}${hasChanged ? '' : ' (nothing had to be done)'}`)
    return EXIT.done
  })
}

/** Announces maintenance to the guest of a server, ends that, or prints its events. */
export async function maintenance(parts: CommandParts, id: string, options: EventOptions): Promise<number> {
  const change = parseEventOptions(options)
  if (!change.ok) throw new CommandFailure(EXIT.usage, change.faults.join('; '))
  return withDatabase(parts, async ({ db }) => {
    const { value } = change
    if (value !== undefined) await inTransaction(db, (tx) => changeMaintenanceEvents(tx, id, value)).catch(asFailure)
    const events = await maintenanceEventsOf(db, id).catch(asFailure)
    parts.output.table(
      ['EVENT', 'CODE', 'STATE', 'NOT BEFORE', 'NOT AFTER', 'DESCRIPTION'],
      events.map((one) => [one.id, one.code, one.state, one.notBefore, one.notAfter ?? '-', one.description]),
    )
    return EXIT.done
  })
}

/** How long the store may take to have the records of the servers that were moved. */
const PUBLISH_TIMEOUT_MS = 30_000

/**
 * Moves the servers of a hypervisor to others, and waits until the store has that. Continues after one that cannot be
 * moved. The exit status is 1 if any was not, or if a record of another publisher names the hypervisor.
 */
export async function evacuate(parts: CommandParts, name: string, options: ApiEvacuateOptions): Promise<number> {
  const { config, output } = parts
  const { begin = false, dryRun = false } = options
  const to = options.to === undefined ? [] : options.to.split(',')
  return withStoreAndDatabase(parts, async ({ db, pool }, store) => {
    await checkNames(parts, db, name, to)
    const evacuation = {
      ...{ name, to, begin, dryRun },
      retrySeconds: config.computeListener.retrySeconds,
      planned: new Map<string, number>(),
    }
    const accounts = new AccountChanges(db, pool.options.max)
    const counts = new Map<string, number>()
    const count = (kind: string) => counts.set(kind, (counts.get(kind) ?? 0) + 1)
    const ids = await findServersOn(db, name)
    for (const id of ids) {
      try {
        const evacuated = await evacuateServer({ db, accounts }, id, evacuation)
        output.print(formatEvacuated(id, evacuated, dryRun))
        count(evacuated.kind)
      } catch (error) {
        if (!(error instanceof Refusal)) throw error
        output.warn(error.message)
        count('refused')
      }
    }
    output.print([`${ids.length} servers`, ...[...counts].map(([kind, n]) => `${n} ${kind}`)].join(', '))
    if (counts.has('refused')) return 1
    const left = await findLeft(store, db, name, !begin && !dryRun)
    for (const one of left) output.warn(one)
    return left.length > 0 ? 1 : EXIT.done
  })
}

/**
 * The records that still name a hypervisor, one text each: those of other publishers, and if `ours` is true, those of our
 * servers that are not published in time.
 */
async function findLeft(store: Publisher, db: Db, name: string, ours: boolean): Promise<readonly string[]> {
  const endMs = Date.now() + PUBLISH_TIMEOUT_MS
  for (;;) {
    const ids = (await store.list()).filter(({ hypervisors }) => hypervisors.includes(name)).map(({ id }) => id)
    const servers = await findServersAmong(db, ids)
    if (ours && servers.size > 0 && Date.now() < endMs) {
      await sleep(200)
      continue
    }
    return ids.flatMap((id) =>
      !servers.has(id)
        ? [`the record of ${id} names ${name}, and is of another publisher: that has to move or remove it`]
        : ours
          ? [`${id} has moved, and its record still names ${name}: see whether imds-api runs and publishes`]
          : [],
    )
  }
}

function formatEvacuated(id: string, { kind, from, to }: Evacuated, dryRun: boolean): string {
  if (kind === 'unchanged') return `${id} names ${from.join(' and ')}: nothing to do`
  return `${dryRun ? 'would be ' : ''}${kind} ${id} from ${from.join(' and ')} to ${to.join(' and ')}`
}

/** Throws a CommandFailure for an unknown hypervisor or a drained target. Warns if `name` is not drained. */
async function checkNames({ output }: CommandParts, db: Db, name: string, to: readonly string[]): Promise<void> {
  const all = new Map((await readHypervisorUsage(db)).map((one) => [one.name, one]))
  for (const one of [name, ...to])
    if (!all.has(one))
      throw new CommandFailure(1, `the region has no hypervisor ${one}: it has ${[...all.keys()].join(', ')}`)
  for (const one of to) {
    if (one === name) throw new CommandFailure(EXIT.usage, `${name} cannot be evacuated to itself`)
    if (all.get(one)!.drained_at !== null)
      throw new CommandFailure(1, `${one} is drained: name another, or run imds-api undrain ${one}`)
  }
  if (all.get(name)!.drained_at === null)
    output.warn(`${name} is not drained, so it may get new servers meanwhile: run imds-api drain ${name} first`)
}

function asFailure(error: unknown): never {
  throw error instanceof Refusal ? new CommandFailure(1, error.message) : error
}
