/**
 * The commands of imdsctl that have no file of their own. Each prints its result, or throws a Failure with the exit
 * status. Any other error means that the store cannot be used.
 */
import { waitForInstance } from '../imdsd/operator/wait.ts'
import { openStore, type Publisher, type StoreSettings } from '../store/open.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { existing, recordOf } from './republish.ts'
import type { Output } from '../runtime/output.ts'

/** What every command that needs a store gets. */
export interface Context {
  readonly store: StoreSettings
  readonly output: Output
}

/** The most reads or changes in flight: enough to hide the round trip, and a bound on memory. */
export const MAX_IN_FLIGHT = 32

/** Prints the record of an instance. */
export async function get({ store, output }: Context, id: string): Promise<void> {
  await withStore(store, async (publisher) => {
    output.print(JSON.stringify((await existing(publisher, id)).document, undefined, 2))
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

/** The revision of an instance in the store, and its place in the order. */
export async function lastPublish({ store }: Context, id: string): Promise<{ revision: number; order: number }> {
  return withStore(store, async (publisher) => {
    const published = await existing(publisher, id)
    return { revision: recordOf(id, published).revision, order: published.order }
  })
}

/** Waits until the daemon at `operator` serves an instance as published at `order`; if that is 0, `revision` of it. */
export async function wait(
  output: Output,
  id: string,
  options: { revision: number; order: number; timeout: number; operator: string },
): Promise<void> {
  const { revision, order, timeout, operator } = options
  const waited = await waitForInstance({ operator, id, revision, order, timeoutMs: timeout * 1000 })
  const { kind: result, ...details } = waited
  if (waited.kind === 'impossible') {
    throw new CommandFailure(
      EXIT.badData,
      `the guest of ${id} can never start with revision ${waited.revision}: ${waited.reason}`,
      { id, result, ...details },
    )
  }
  if (waited.kind === 'timeout') {
    throw new CommandFailure(
      EXIT.timeout,
      `the daemon does not serve ${order > 0 ? `the publish ${order}` : `revision ${revision}`} of ${id}: ${waited.reason}`,
      { id, result, ...details, revision: waited.revision ?? null },
    )
  }
  output.result({ id, revision: waited.revision }, `${id} is served at revision ${waited.revision}`)
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

export async function withStore<T>(settings: StoreSettings, use: (publisher: Publisher) => Promise<T>): Promise<T> {
  const publisher = await openStore(settings)
  try {
    return await use(publisher)
  } finally {
    await publisher.close()
  }
}

/** An outcome as `--json` prints it. */
export function jsonOf(
  { kind: result, ...rest }: { readonly kind: string },
  dryRun = false,
): { readonly result: string; readonly [field: string]: unknown } {
  return { result, ...(dryRun && { dryRun }), ...rest }
}
