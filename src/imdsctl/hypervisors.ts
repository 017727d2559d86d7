/** `imdsctl hypervisors`, `acl`, `drain`, `undrain` and `forget`: the life of a hypervisor, as the store knows it. */
import { isName } from '../metadata/identifiers.ts'
import { formatAgo, formatDuration } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { isRecent } from '../store/fleet.ts'
import type { Publisher } from '../store/publisher.ts'
import { formatDaemonUser } from '../store/redis/acl.ts'
import { parseStoreUrl } from '../store/url.ts'
import { withStore, type Context } from './commands.ts'

/** Prints a table of the hypervisors that are announced, drained, or named by a record. */
export async function hypervisors({ store, output }: Context): Promise<void> {
  await withStore(store, async (publisher) => {
    const all = await readHypervisors(publisher)
    if (output.json) for (const { announced, ...hypervisor } of all) output.printJson({ ...announced, ...hypervisor })
    else
      output.table(
        ['HYPERVISOR', 'VERSION', 'INSTANCES', 'RECORDS', 'LAG', 'LAST SEEN', 'DRAINED'],
        all.map((hypervisor) => cellsOf(hypervisor)),
      )
    for (const { name, announced } of all)
      if (announced?.duplicate === true && isRecent(announced.seenAt, Date.now()) && !output.json)
        output.warn(`warning: several daemons announce themselves as ${name}: run imdsctl doctor there`)
  })
}

/** Prints the Redis user of a hypervisor as a line of an ACL file, or those of all that the store knows. */
export async function acl(
  { store, output }: Context,
  name: string | undefined,
  { all: isAll = false }: { readonly all?: boolean },
): Promise<void> {
  if (isAll === (name !== undefined))
    throw new CommandFailure(EXIT.usage, 'give either the name of a hypervisor or --all')
  if (name !== undefined) checkName(name)
  const { region } = store
  if (region === undefined || parseStoreUrl(store.url)?.kind === 'files')
    throw new CommandFailure(EXIT.usage, 'only a region in Redis has users: set IMDS_STORE and IMDS_REGION')
  const all = name === undefined ? await withStore(store, readHypervisors) : [{ name }]
  for (const { name: hypervisor } of all) {
    const user = formatDaemonUser(region, hypervisor)
    output.result({ hypervisor, user }, user)
  }
}

/** `records`: how many name the hypervisor. `announced` undefined: no daemon has announced it. */
async function readHypervisors(publisher: Publisher) {
  const announced = new Map((await publisher.hypervisors()).map((hypervisor) => [hypervisor.name, hypervisor]))
  const drained = await publisher.fleet.drained()
  const records = await countRecords(publisher)
  const names = new Set([...announced.keys(), ...drained.keys(), ...records.keys()])
  return [...names].sort().map((name) => ({
    name,
    records: records.get(name) ?? 0,
    announced: announced.get(name),
    drainedAt: drained.get(name),
  }))
}

async function countRecords(publisher: Publisher): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>()
  for (const { hypervisors: names } of await publisher.list())
    for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return counts
}

type Hypervisor = Awaited<ReturnType<typeof readHypervisors>>[number]

function cellsOf({ name, records, announced, drainedAt }: Hypervisor): readonly string[] {
  const drained = drainedAt === undefined ? '-' : formatAgo(drainedAt, Date.now())
  if (announced === undefined) return [name, '-', '-', String(records), '-', 'never', drained]
  const { version, instances, lagSeconds, seenAt } = announced
  const lag = lagSeconds === undefined || !isRecent(seenAt, Date.now()) ? '-' : formatDuration(lagSeconds)
  return [name, version, String(instances), String(records), lag, formatAgo(seenAt, Date.now()), drained]
}

export async function drain(context: Context, name: string): Promise<void> {
  const done = 'is drained: imdsctl put and import warn of records that name it'
  await changeMark(context, name, ['drained', done, 'was drained already'], async (publisher) => {
    await refuseBesideApi(publisher, `imds-api drain ${name}`)
    const known = (await publisher.hypervisors([name])).length > 0 || (await countRecords(publisher)).has(name)
    if (!known)
      throw new CommandFailure(
        EXIT.notFound,
        `no daemon has announced ${name}, and no record names it: check the name (imdsctl hypervisors)`,
        { name },
      )
    return publisher.fleet.drain(name, new Date().toISOString())
  })
}

export async function undrain(context: Context, name: string): Promise<void> {
  await changeMark(context, name, ['undrained', 'is no longer drained', 'is not drained'], async (publisher) => {
    await refuseBesideApi(publisher, `imds-api undrain ${name}`)
    return publisher.fleet.undrain(name)
  })
}

/** Deletes what the store knows of a hypervisor that is gone. Refuses while records name it. */
export async function forget(context: Context, name: string): Promise<void> {
  await changeMark(context, name, ['forgotten', 'is forgotten', 'is not known to the store'], async (publisher) => {
    const records = (await countRecords(publisher)).get(name) ?? 0
    if (records > 0)
      throw new CommandFailure(
        EXIT.refused,
        `${records} records name ${name} (imdsctl list --hypervisor ${name}): move them first, by imdsctl evacuate or, its own servers, by imds-api evacuate`,
        { name, records },
      )
    const seen = await seenLately(publisher, name)
    const isChanged = await publisher.fleet.forget(name)
    if (seen !== undefined) context.output.warn(`${name} was seen ${seen}: if its daemon runs, it announces it again`)
    return isChanged
  })
}

/** Changes what the store knows of a hypervisor, and prints the result, or that there was `nothing` to do. */
async function changeMark(
  { store, output }: Context,
  name: string,
  [result, done, nothing]: readonly [string, string, string],
  change: (publisher: Publisher) => Promise<boolean>,
): Promise<void> {
  checkName(name)
  const isChanged = await withStore(store, change)
  output.result(
    { name, result: isChanged ? result : 'unchanged' },
    `${name} ${isChanged ? done : `${nothing}: nothing to do`}`,
  )
}

/** How long ago a daemon was seen, such as `3 s ago`, if it probably runs. */
export async function seenLately(publisher: Publisher, name: string): Promise<string | undefined> {
  const [announced] = await publisher.hypervisors([name])
  const nowMs = Date.now()
  return announced !== undefined && isRecent(announced.seenAt, nowMs) ? formatAgo(announced.seenAt, nowMs) : undefined
}

export function checkName(name: string): void {
  if (!isName(name)) throw new CommandFailure(EXIT.usage, `"${name}" is not the name of a hypervisor`)
}

/** Throws a Failure if imds-api publishes the region: it would overwrite the change. `command` does it there. */
export async function refuseBesideApi(publisher: Publisher, command: string): Promise<void> {
  const api = await publisher.fleet.controlPlane()
  if (api === undefined) return
  throw new CommandFailure(
    EXIT.refused,
    `imds-api publishes this region (last seen ${formatAgo(api.seenAt, Date.now())}) and would overwrite this: ` +
      `run ${command} on its host`,
    { command },
  )
}
