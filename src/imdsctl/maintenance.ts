/** `imdsctl maintenance`: announces maintenance to the guest of an instance, and ends that (contract H8). */
import { parseEventOptions, type EventChange, type EventOptions } from '../metadata/event-options.ts'
import { changeEvents } from '../metadata/events.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Publisher } from '../store/publisher.ts'
import { withStore, type Context } from './commands.ts'
import { checkId } from './failure.ts'
import { refuseBesideApi } from './hypervisors.ts'
import { existing, recordOf, republish } from './republish.ts'

/** Changes the events of an instance, or prints them. */
export async function maintenance({ store, output }: Context, id: string, options: EventOptions): Promise<void> {
  checkId(id)
  const change = parseEventOptions(options)
  if (!change.ok) throw new CommandFailure(EXIT.usage, change.faults.join('; '))
  await withStore(store, async (publisher) => {
    if (change.value === undefined) {
      const { events } = recordOf(id, await existing(publisher, id))
      if (output.json) output.printJson({ id, events })
      else
        output.table(
          ['EVENT', 'CODE', 'STATE', 'NOT BEFORE', 'NOT AFTER', 'DESCRIPTION'],
          events.map((event) => [
            event.id,
            event.code,
            event.state,
            event.notBefore,
            event.notAfter ?? '-',
            event.description,
          ]),
        )
      return
    }
    await refuseBesideApi(publisher, `imds-api maintenance ${id}`)
    const { revision, event } = await put(publisher, id, change.value)
    output.result(
      { id, result: 'published', revision, event },
      `event ${event}: published ${id} at revision ${revision}`,
    )
  })
}

function put(
  publisher: Publisher,
  id: string,
  change: EventChange,
): Promise<{ readonly revision: number; readonly event: string }> {
  return republish(publisher, id, ({ revision, events: before }) => {
    const events = changeEvents(before, change)
    if (!events.ok) throw new CommandFailure(EXIT.badData, `${id}: ${events.faults.join('; ')}`, { id })
    const event = change.kind === 'end' ? change.id : String(change.event['id'])
    return { fields: { events: events.value }, result: { revision: revision + 1, event } }
  })
}
