/** `imdsctl maintenance`: announces maintenance to the guest of an instance, and ends that (contract H8). */
import { parseEventOptions, type EventChange, type EventOptions } from '../metadata/event-options.ts'
import { changeEvents } from '../metadata/events.ts'
import type { Instance } from '../metadata/instance.ts'
import { parse } from '../metadata/record.ts'
import { EXIT } from '../runtime/exit-status.ts'
import type { Publisher } from '../store/publisher.ts'
import { checkId, withStore, type Context } from './commands.ts'
import { CommandFailure } from './failure.ts'
import { refuseBesideApi } from './hypervisors.ts'

/** Another writer that publishes the same instance is waited for this often. */
const ATTEMPTS = 5

/** Changes the events of an instance, or prints them. */
export async function maintenance({ store, output }: Context, id: string, options: EventOptions): Promise<void> {
  checkId(id)
  const change = parseEventOptions(options)
  if (!change.ok) throw new CommandFailure(EXIT.usage, change.faults.join('; '))
  await withStore(store, async (publisher) => {
    if (change.value === undefined) {
      const { events } = await read(publisher, id)
      if (output.json) output.printJson({ id, events })
      else
        output.table(
          ['EVENT', 'CODE', 'STATE', 'NOT BEFORE', 'NOT AFTER', 'DESCRIPTION'],
          events.map((one) => [one.id, one.code, one.state, one.notBefore, one.notAfter ?? '-', one.description]),
        )
      return
    }
    await refuseBesideApi(publisher, `imds-api maintenance ${id}`)
    const { revision, event } = await put(publisher, id, change.value)
    output.result(
      { id, result: 'published', revision, event },
      `event ${event}: published ${id} at revision ${String(revision)}`,
    )
  })
}

async function read(publisher: Publisher, id: string): Promise<Instance & { readonly document: object }> {
  const published = await publisher.get(id)
  if (published === undefined) throw new CommandFailure(EXIT.notFound, `the store has no ${id}`, { id })
  const parsed = parse(published.document)
  if (!parsed.ok) throw new CommandFailure(EXIT.badData, `the record of ${id} is faulty: publish a valid one`, { id })
  return { ...parsed.value, document: published.document as object }
}

/** Publishes the next revision with the change. Tries again if another writer has published the instance meanwhile. */
async function put(
  publisher: Publisher,
  id: string,
  change: EventChange,
): Promise<{ readonly revision: number; readonly event: string }> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const { document, revision: before, events } = await read(publisher, id)
    const changed = changeEvents(events, change)
    if (!changed.ok) throw new CommandFailure(EXIT.badData, `${id}: ${changed.faults.join('; ')}`, { id })
    const revision = before + 1
    const result = await publisher.put({ ...document, revision, events: changed.value })
    if (result.kind === 'stale') continue
    if (result.kind !== 'published')
      throw new CommandFailure(EXIT.refused, `${id} cannot be published again: publish its record first`, {
        id,
        ...result,
      })
    return { revision, event: change.kind === 'end' ? change.id : String(change.event['id']) }
  }
  throw new CommandFailure(EXIT.refused, `another writer keeps changing ${id}: run this again`, { id })
}
