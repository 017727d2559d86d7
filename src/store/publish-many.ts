/**
 * Publishes many records through one publisher, several at a time. Keeps the order where it matters: records of one
 * instance are published in their order. If another instance owns an address of a record, the record is tried again
 * after all records before it, which may release the address.
 */
import { StoreUnavailable, type Publisher, type PutOptions, type PutResult } from './publisher.ts'
import type { UserDataChange } from './user-data.ts'

/** A record to publish. `id` keeps those of one instance in order. */
export interface ToPublish {
  readonly id: string
  readonly document: unknown
  readonly userData: UserDataChange
}

/** The outcome of one record. `failed`: the publish was rejected. */
export type SettledPut = PutResult | { readonly kind: 'failed'; readonly error: unknown }

/**
 * Publishes records with at most `atOnce` in flight, and calls `onSettled` for each. Resolves with `unavailable` as soon
 * as the store cannot be used and nothing is in flight, even while it waits for the next record. The remaining records
 * are not published.
 */
export async function publishMany<T extends ToPublish>(
  publisher: Publisher,
  records: AsyncIterator<T>,
  atOnce: number,
  options: PutOptions,
  onSettled: (record: T, outcome: SettledPut) => void,
): Promise<'done' | 'unavailable'> {
  const inFlight = new Set<Promise<void>>()
  const lastOf = new Map<string, Promise<void>>()
  const { promise: unavailable, resolve: stop } = Promise.withResolvers<undefined>()

  const publish = async (
    record: T,
    before: Promise<void> | undefined,
    earlier: readonly Promise<void>[],
  ): Promise<SettledPut> => {
    const attempt = () => publisher.put(record.document, record.userData, options)
    try {
      await before
      const put = await attempt()
      if (put.kind !== 'address-owned') return put
      await Promise.all(earlier)
      return await attempt()
    } catch (error) {
      if (error instanceof StoreUnavailable) stop(undefined)
      return { kind: 'failed', error }
    }
  }

  for (;;) {
    if (inFlight.size >= atOnce) await Promise.race(inFlight)
    const next = await Promise.race([unavailable, records.next()])
    if (next === undefined || next.done === true) {
      await Promise.all(inFlight)
      return next === undefined ? 'unavailable' : 'done'
    }
    const { value: record } = next
    const work = publish(record, lastOf.get(record.id), [...inFlight]).then((outcome) => {
      onSettled(record, outcome)
      inFlight.delete(work)
      if (lastOf.get(record.id) === work) lastOf.delete(record.id)
    })
    inFlight.add(work)
    lastOf.set(record.id, work)
  }
}
