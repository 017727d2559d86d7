/** Reads the record of an instance, and publishes its next revision. */
import type { Instance } from '../metadata/instance.ts'
import { parse } from '../metadata/record.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Published, Publisher, PutOptions } from '../store/publisher.ts'
import { checkId, refusalOf } from './failure.ts'

/** Another writer that publishes the same instance is waited for this often. */
const ATTEMPTS = 5

/** An instance as published. Throws a Failure for text that is no id, and if there is none. */
export async function existing(publisher: Pick<Publisher, 'get'>, id: string): Promise<Published> {
  checkId(id)
  const published = await publisher.get(id)
  if (published === undefined) throw new CommandFailure(EXIT.notFound, `the store has no ${id}`, { id })
  return published
}

/** The record of an instance. Throws a Failure if it is faulty. */
export function recordOf(id: string, { document }: Published): Instance {
  const parsed = parse(document)
  if (parsed.ok) return parsed.value
  throw new CommandFailure(EXIT.badData, `the record of ${id} is faulty: publish a valid one`, { id })
}

/** What to do with a record. `fields` replace those of the record; undefined: nothing is published. */
export interface Republished<T> {
  readonly fields?: Partial<Instance>
  readonly result: T
}

/**
 * Publishes the next revision with the fields that `change` returns, and returns its result. Calls it again with the
 * new record if another writer has published the instance meanwhile. Throws a Failure if there is no such instance.
 */
export async function republish<T>(
  publisher: Pick<Publisher, 'get' | 'put'>,
  id: string,
  change: (record: Instance) => Republished<T>,
  options: PutOptions = {},
): Promise<T> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const published = await existing(publisher, id)
    const record = recordOf(id, published)
    const { fields, result } = change(record)
    if (fields === undefined) return result
    const document = { ...(published.document as object), ...fields, revision: record.revision + 1 }
    const put = await publisher.put(document, 'keep', options)
    if (put.kind === 'published' || put.kind === 'unchanged') return result
    if (put.kind !== 'stale') throw refusalOf(id, put, { id })
  }
  throw new CommandFailure(EXIT.refused, `another writer keeps changing ${id}: run this again`, { id })
}
