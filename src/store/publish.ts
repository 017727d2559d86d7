/**
 * The Publisher of every store: checks the id, the record, the region and the user-data, changes seals, and repeats a
 * write that another writer has overtaken. Its backend (backend.ts) stores what it has checked, and makes paths and
 * keys of checked ids only.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ID_RULE, isId } from '../metadata/identifiers.ts'
import type { Parsed } from '../metadata/parsed.ts'
import { parse, parseStored, type Fault } from '../metadata/record.ts'
import type { Reports } from '../metadata/reports.ts'
import type { Backend, Conversion, RecordChange, RecordWriter, Written } from './backend.ts'
import type { Fleet } from './fleet.ts'
import { checkRecord, type CheckedRecord } from './check-record.ts'
import type {
  AnnouncedHypervisor,
  DecryptResult,
  EncryptResult,
  Listed,
  Published,
  Publisher,
  PutOptions,
  PutResult,
  RemoveOptions,
  Removed,
  RemoveResult,
  SealResult,
} from './publisher.ts'
import { changeSealOf, type Seal } from './seal.ts'
import type { UserDataChange } from './user-data.ts'

const MAX_ATTEMPTS = 10
/** A writer that lost a race waits up to this long, so that two writers do not keep overtaking each other. */
const BACKOFF_MS = 20

const KEYS_IN_PLAIN: Fault = {
  path: '/identity/keys',
  message: 'must be empty in a store of plain records, since others could read the private key: use record keys',
}

/** A publisher on any backend. `userDataMaxBytes` bounds the user-data. */
export class StorePublisher implements Publisher {
  readonly #backend: Backend
  readonly #userDataMaxBytes: number

  constructor(backend: Backend, userDataMaxBytes: number) {
    this.#backend = backend
    this.#userDataMaxBytes = userDataMaxBytes
  }

  get fleet(): Fleet {
    return this.#backend.fleet
  }

  get recordKey(): string | undefined {
    return this.#backend.conversion?.key
  }

  put(document: unknown, userData: UserDataChange = 'keep', { dryRun = false }: PutOptions = {}): Promise<PutResult> {
    return this.#backend.transaction((writer) => this.#put(writer, document, userData, dryRun), dryRun)
  }

  async reports(id: string): Promise<Reports | undefined> {
    return (await this.reportsOf([id])).get(id)
  }

  async reportsOf(ids: readonly string[]): Promise<ReadonlyMap<string, Reports>> {
    for (const id of ids) checkId(id)
    return this.#backend.reportsOf(ids)
  }

  async get(id: string): Promise<Published | undefined> {
    checkId(id)
    return this.#backend.get(id)
  }

  async remove(id: string, revision?: number, options: RemoveOptions = {}): Promise<RemoveResult> {
    checkId(id)
    return this.#backend.transaction((writer) => writer.remove(id, revision, options), options.dryRun ?? false)
  }

  async seal(id: string, { dryRun = false }: PutOptions = {}): Promise<SealResult> {
    checkId(id)
    const now = new Date().toISOString()
    return this.#backend.transaction((writer) => this.#changeSeal(writer, id, now, dryRun), dryRun)
  }

  async unseal(id: string, { dryRun = false }: PutOptions = {}): Promise<SealResult> {
    checkId(id)
    return this.#backend.transaction((writer) => this.#changeSeal(writer, id, undefined, dryRun), dryRun)
  }

  async encrypt(id: string, fromPlain: boolean): Promise<EncryptResult> {
    checkId(id)
    return this.#converted((conversion) => conversion.encrypt(id, fromPlain))
  }

  async decrypt(id: string): Promise<DecryptResult> {
    checkId(id)
    return this.#converted((conversion) => conversion.decrypt(id))
  }

  markPlain(): Promise<void> {
    return this.#converted((conversion) => conversion.mark('plain'))
  }

  markEncrypted(): Promise<void> {
    return this.#converted((conversion) => conversion.mark('encrypted'))
  }

  initialise(): Promise<boolean> {
    return this.#backend.initialise()
  }

  unannounced(names: readonly string[]): Promise<readonly string[]> {
    return this.#backend.unannounced(names)
  }

  hypervisors(names?: readonly string[]): Promise<readonly AnnouncedHypervisor[]> {
    return this.#backend.hypervisors(names)
  }

  /** Leaves out what is no id: other programs can write the index of a store. */
  async list(): Promise<readonly Listed[]> {
    return (await this.#backend.list()).filter(({ id }) => isId(id))
  }

  async tombstones(): Promise<readonly Removed[]> {
    return (await this.#backend.tombstones()).filter(({ id }) => isId(id)).sort((a, b) => (a.id < b.id ? -1 : 1))
  }

  close(): Promise<void> {
    return this.#backend.close()
  }

  async #put(writer: RecordWriter, document: unknown, userData: UserDataChange, dryRun: boolean): Promise<PutResult> {
    for (let attempt = 1; ; attempt++) {
      const checked = await this.#check(document, userData)
      if (!checked.ok) return { kind: 'invalid', faults: checked.faults }
      const written = await this.#write(writer, { ...checked.value, userData, liftsSeal: false, dryRun })
      if (written.kind === 'published' || written.kind === 'unchanged') {
        const { instance: given } = checked.value
        const instance = written.sealedAt === undefined ? given : { ...given, sealedAt: written.sealedAt }
        return { kind: written.kind, instance, unannounced: await this.#backend.unannounced(instance.hypervisors) }
      }
      if (written.kind !== 'user-data-changed') return written
      if (attempt === MAX_ATTEMPTS)
        throw new Error('another writer keeps changing the user-data of this instance: try again')
    }
  }

  async #check(document: unknown, userData: UserDataChange): Promise<Parsed<CheckedRecord, Fault>> {
    const bytes = userData === 'keep' ? ((await this.#userDataOf(document)) ?? 'none') : userData
    return checkRecord(document, bytes, { region: this.#backend.region, userDataMaxBytes: this.#userDataMaxBytes })
  }

  async #userDataOf(document: unknown): Promise<Uint8Array | undefined> {
    const id = (document as { id?: unknown } | undefined)?.id
    return isId(id) ? (await this.#backend.get(id))?.userData : undefined
  }

  /** Writes a record, unless others could read the private keys in it. */
  async #write(writer: RecordWriter, change: RecordChange): Promise<Written> {
    return this.#backend.conversion === undefined && (change.instance.identity?.keys.length ?? 0) > 0
      ? { kind: 'invalid', faults: [KEYS_IN_PLAIN] }
      : writer.write(change)
  }

  async #changeSeal(writer: RecordWriter, id: string, sealedAt: Seal, dryRun: boolean): Promise<SealResult> {
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      const published = await this.#backend.get(id)
      if (published === undefined) return { kind: 'absent' }
      const current = parseStored(published.document)
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
      const written = await this.#write(writer, {
        instance: next.value,
        document,
        userData: 'keep',
        liftsSeal,
        dryRun,
      })
      if (written.kind === 'published') {
        return sealedAt === undefined
          ? { kind: 'unsealed', revision: revision + 1 }
          : { kind: 'sealed', revision: revision + 1, sealedAt }
      }
      if (written.kind === 'address-owned') return written
      if (written.kind === 'invalid')
        throw new Error(`the record of ${id} ${written.faults.map(({ message }) => message).join('; ')}`)
      await sleep(Math.random() * BACKOFF_MS)
    }
    throw new Error('another writer keeps changing this instance: try again')
  }

  async #converted<T>(task: (conversion: Conversion) => Promise<T>): Promise<T> {
    const { conversion, noKeysReason } = this.#backend
    if (conversion === undefined) throw new Error(noKeysReason)
    return this.#backend.transaction(() => task(conversion), false)
  }
}

/** Throws unless this is an id. Does not repeat it: it may be of any length, with any characters. */
function checkId(id: unknown): void {
  if (!isId(id)) throw new TypeError(`the id of an instance must be ${ID_RULE}`)
}
