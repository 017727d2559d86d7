/**
 * The Publisher of every store: checks the id, the record, the region and the user-data, changes seals, and repeats a
 * write that another writer has overtaken. Its backend (backend.ts) stores what it has checked, and makes paths and
 * keys of checked ids only.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ID_RULE, isId } from '../metadata/identifiers.ts'
import type { Parsed } from '../metadata/parsed.ts'
import { isRevision, parse, type Fault } from '../metadata/record.ts'
import type { Backend, Conversion, RecordWriter } from './backend.ts'
import { checkRecord, type CheckedRecord } from './check-record.ts'
import type { Publisher, PutOptions, PutResult, RemoveOptions, SealResult } from './publisher.ts'
import { changeSealOf, type Seal } from './seal.ts'
import type { UserDataChange } from './user-data.ts'

const MAX_ATTEMPTS = 10
/** A writer that lost a race waits up to this long, so that two writers do not keep overtaking each other. */
const BACKOFF_MS = 20

/** A publisher on any backend. `userDataMaxBytes` bounds the user-data. */
export function publisherOn(backend: Backend, userDataMaxBytes: number): Publisher {
  const { conversion, fleet } = backend

  const check = async (document: unknown, userData: UserDataChange): Promise<Parsed<CheckedRecord, Fault>> => {
    const bytes = userData === 'keep' ? ((await userDataOf(document)) ?? 'none') : userData
    return checkRecord(document, bytes, { region: backend.region, userDataMaxBytes })
  }
  const userDataOf = async (document: unknown) => {
    const id = (document as { id?: unknown } | undefined)?.id
    return isId(id) ? (await backend.get(id))?.userData : undefined
  }
  const put = async (
    writer: RecordWriter,
    document: unknown,
    userData: UserDataChange,
    dryRun: boolean,
  ): Promise<PutResult> => {
    for (let attempt = 1; ; attempt++) {
      const checked = await check(document, userData)
      if (!checked.ok) return { kind: 'invalid', faults: checked.faults }
      const written = await writer.write({ ...checked.value, userData, liftsSeal: false, dryRun })
      if (written.kind === 'published' || written.kind === 'unchanged') {
        const { instance: given } = checked.value
        const instance = written.sealedAt === undefined ? given : { ...given, sealedAt: written.sealedAt }
        const unannounced = await backend.unannounced(instance.hypervisors)
        return { kind: written.kind, instance, order: written.order, unannounced }
      }
      if (written.kind !== 'user-data-changed') return written
      if (attempt === MAX_ATTEMPTS)
        throw new Error('another writer keeps changing the user-data of this instance: try again')
    }
  }

  const writeSeal = async (writer: RecordWriter, id: string, sealedAt: Seal, dryRun: boolean): Promise<SealResult> => {
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      const published = await backend.get(id)
      if (published === undefined) return { kind: 'absent' }
      const current = parse(published.document)
      if (!current.ok) throw new Error(`the store's record of ${id} is faulty: publish a valid one first`)
      const { revision, sealedAt: since } = current.value
      if ((since === undefined) === (sealedAt === undefined)) return { kind: 'unchanged', revision, sealedAt: since }
      if (revision === Number.MAX_SAFE_INTEGER) throw new Error(`the record of ${id} has the highest possible revision`)
      const document = changeSealOf(published.document, revision + 1, sealedAt)
      const next = parse(document)
      if (!next.ok)
        throw new Error(
          `the record of ${id} cannot be published again: ` +
            next.faults.map(({ path, message }) => `${path} ${message}`).join('; '),
        )
      const liftsSeal = sealedAt === undefined
      const written = await writer.write({ instance: next.value, document, userData: 'keep', liftsSeal, dryRun })
      if (written.kind === 'published') {
        return sealedAt === undefined
          ? { kind: 'unsealed', revision: revision + 1, order: written.order }
          : { kind: 'sealed', revision: revision + 1, order: written.order, sealedAt }
      }
      if (written.kind === 'address-owned') return written
      if (written.kind === 'invalid')
        throw new Error(`the record of ${id} ${written.faults.map(({ message }) => message).join('; ')}`)
      await sleep(Math.random() * BACKOFF_MS)
    }
    throw new Error('another writer keeps changing this instance: try again')
  }

  const converted = async <T>(task: (conversion: Conversion) => Promise<T>): Promise<T> => {
    if (conversion === undefined) throw new Error(backend.noKeysReason)
    return backend.transaction(() => task(conversion), false)
  }
  const changeSeal = (at: () => Seal) =>
    withId((id, { dryRun = false }: PutOptions = {}) =>
      backend.transaction((writer) => writeSeal(writer, id, at(), dryRun), dryRun),
    )

  return {
    fleet,
    recordKey: conversion?.key,
    put: async (document, userData = 'keep', { dryRun = false } = {}) => {
      checkUserData(userData)
      return backend.transaction((writer) => put(writer, document, userData, dryRun), dryRun)
    },
    reports: withId((id) => backend.reports(id)),
    get: withId((id) => backend.get(id)),
    remove: withId(async (id, revision?: number, options: RemoveOptions = {}) => {
      if (revision !== undefined && !isRevision(revision))
        throw new TypeError(`a revision must be a whole number from 1 to ${Number.MAX_SAFE_INTEGER}`)
      return backend.transaction((writer) => writer.remove(id, revision, options), options.dryRun ?? false)
    }),
    seal: changeSeal(() => new Date().toISOString()),
    unseal: changeSeal(() => undefined),
    encrypt: withId((id, fromPlain: boolean) => converted((conversion) => conversion.encrypt(id, fromPlain))),
    decrypt: withId((id) => converted((conversion) => conversion.decrypt(id))),
    markPlain: () => converted((conversion) => conversion.mark('plain')),
    markEncrypted: () => converted((conversion) => conversion.mark('encrypted')),
    initialise: () => backend.initialise(),
    unannounced: (names) => backend.unannounced(names),
    hypervisors: (names) => backend.hypervisors(names),
    // without what is no id: other programs can write the index of a store
    list: async () => (await backend.list()).filter(({ id }) => isId(id)),
    tombstones: async () =>
      (await backend.tombstones()).filter(({ id }) => isId(id)).sort((a, b) => (a.id < b.id ? -1 : 1)),
    close: () => backend.close(),
  }
}

/** A method for an instance. It rejects for what is no id. */
function withId<Rest extends unknown[], T>(method: (id: string, ...rest: Rest) => Promise<T>) {
  return async (id: string, ...rest: Rest): Promise<T> => {
    checkId(id)
    return method(id, ...rest)
  }
}

/** Throws unless this is an id. Does not repeat it: it may be of any length, with any characters. */
function checkId(id: unknown): void {
  if (!isId(id)) throw new TypeError(`the id of an instance must be ${ID_RULE}`)
}

/** Throws unless this is user-data. A text is refused, and so are other arrays: a store would keep half of each number. */
function checkUserData(userData: unknown): void {
  if (userData !== 'keep' && userData !== 'none' && !(userData instanceof Uint8Array))
    throw new TypeError('user-data must be a Uint8Array (such as a Buffer), "none" or "keep"')
}
