/**
 * The commands of imdsctl that have no file of their own. Each prints its result, or throws a Failure with the exit
 * status. Any other error means that the store cannot be used.
 */
import { waitForInstance } from '../imdsd/operator/wait.ts'
import { openStore, type Publisher, type StoreSettings } from '../store/open.ts'
import { EXIT } from '../runtime/exit-status.ts'
import { checkId, CommandFailure } from './failure.ts'
import { existing, recordOf } from './republish.ts'
import type { Output } from '../runtime/output.ts'

/** What every command that needs a store gets. */
export interface Context {
  readonly store: StoreSettings
  readonly output: Output
}

/** The most changes in flight: enough to hide the round trip, and a bound on memory. A file store has one writer. */
export function maxInFlight({ url }: StoreSettings): number {
  return url.startsWith('file:') ? 1 : 32
}

/** Prints the record of an instance, without its private keys unless they are asked for. */
export async function get({ store, output }: Context, id: string, withKeys: boolean): Promise<void> {
  await withStore(store, async (publisher) => {
    const hide = (name: string, value: unknown) =>
      name === 'privateKey' && !withKeys ? 'hidden: use --private-keys' : value
    output.print(JSON.stringify((await existing(publisher, id)).document, hide, 2))
  })
}

/** Prints the bytes of an instance's user-data. */
export async function userData({ store, output }: Context, id: string): Promise<void> {
  await withStore(store, async (publisher) => {
    const { userData: bytes } = await existing(publisher, id)
    if (output.json)
      output.printJson({ id, userDataBase64: bytes === undefined ? null : Buffer.from(bytes).toString('base64') })
    else if (bytes !== undefined) output.write(bytes)
  })
}

/**
 * Encrypts the named instances with the first key, or all if none is named. Continues after one that cannot be
 * encrypted, and fails at the end. After all instances are encrypted, marks the region as encrypted, even if it has no
 * instance.
 */
export async function encrypt({ store, output }: Context, named: readonly string[], fromPlain: boolean): Promise<void> {
  named.forEach(checkId)
  await withStore(store, async (publisher) => {
    const ids = named.length > 0 ? named : (await publisher.list()).map(({ id }) => id)
    const counts = await changeEach(ids, ['encrypted', 'unchanged'], (id) => publisher.encrypt(id, fromPlain))
    if (named.length === 0) await publisher.markEncrypted()
    output.result(
      counts,
      `${String(counts.encrypted)} encrypted, ${String(counts.unchanged)} already had the first key`,
    )
  })
}

/**
 * Decrypts every instance and marks the region as plain, to stop the use of record keys. Continues after one that
 * cannot be decrypted, and fails at the end.
 */
export async function decrypt({ store, output }: Context): Promise<void> {
  await withStore(store, async (publisher) => {
    const ids = (await publisher.list()).map(({ id }) => id)
    const counts = await changeEach(ids, ['decrypted', 'unchanged'], (id) => publisher.decrypt(id))
    await publisher.markPlain()
    output.result(
      counts,
      `${String(counts.decrypted)} decrypted, ${String(counts.unchanged)} were not encrypted; ` +
        'publishers without keys are accepted again',
    )
  })
}

/**
 * Changes one instance after the other, and counts the outcomes that `done` lists. Throws a Failure that names the
 * instances with any other outcome.
 */
async function changeEach<T extends string>(
  ids: readonly string[],
  done: readonly [T, ...T[]],
  change: (id: string) => Promise<{ readonly kind: string }>,
): Promise<Readonly<Record<T, number>>> {
  const counts = Object.fromEntries(done.map((result) => [result, 0])) as Record<T, number>
  const failures = new Map<string, string>()
  for (const id of ids) {
    try {
      const { kind } = await change(id)
      const counted = done.find((one) => one === kind)
      if (counted !== undefined) counts[counted] += 1
      else failures.set(id, NOT_CHANGED[kind] ?? kind)
    } catch (error) {
      failures.set(id, String(error))
    }
  }
  if (failures.size === 0) return counts
  const lines = [...failures].map(([id, why]) => `\n  ${id}: ${why}`)
  throw new CommandFailure(
    EXIT.badData,
    `${String(failures.size)} of ${String(ids.length)} could not be ${done[0]}:${lines.join('')}`,
    { ...counts, failures: Object.fromEntries(failures) },
  )
}

const NOT_CHANGED: Readonly<Record<string, string>> = {
  absent: 'the store has no record of it',
  plain: 'it is not encrypted (--from-plain accepts it)',
}

/** Returns the revision of an instance in the store. */
export async function lastRevision({ store }: Context, id: string): Promise<number> {
  return withStore(store, async (publisher) => recordOf(id, await existing(publisher, id)).revision)
}

/** Waits until the daemon at `operator` serves a revision of an instance. */
export async function wait(
  output: Output,
  id: string,
  options: { revision: number; timeout: number; operator: string },
): Promise<void> {
  const { revision, timeout, operator } = options
  const waited = await waitForInstance({ operator, id, revision, timeoutMs: timeout * 1000 })
  const { kind: result, ...details } = waited
  if (waited.kind === 'impossible') {
    throw new CommandFailure(
      EXIT.badData,
      `the guest of ${id} can never start with revision ${String(waited.revision)}: ${waited.reason}`,
      { id, result, ...details },
    )
  }
  if (waited.kind === 'timeout') {
    throw new CommandFailure(
      EXIT.timeout,
      `the daemon does not serve revision ${String(revision)} of ${id}: ${waited.reason}`,
      { id, result, ...details, revision: waited.revision ?? null },
    )
  }
  output.result({ id, revision: waited.revision }, `${id} is served at revision ${String(waited.revision)}`)
}

/** Initialises a new region. */
export async function init({ store, output }: Context): Promise<void> {
  await withStore(store, async (publisher) => {
    const result = (await publisher.initialise()) ? 'initialised' : 'unchanged'
    output.result(
      { result },
      result === 'initialised'
        ? 'the region is initialised: daemons become ready with it'
        : 'nothing to do: the store is ready for use',
    )
  })
}

/** Opens a store, uses it and closes it. */
export async function withStore<T>(settings: StoreSettings, use: (publisher: Publisher) => Promise<T>): Promise<T> {
  const publisher = await openStore(settings)
  try {
    return await use(publisher)
  } finally {
    await publisher.close()
  }
}

/** An outcome as `--json` prints it. */
export function jsonOf({ kind, ...rest }: { readonly kind: string }): Readonly<Record<string, unknown>> {
  return { result: kind, ...rest }
}
