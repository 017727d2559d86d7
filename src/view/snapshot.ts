/**
 * The view on disk, so that a daemon that starts without the store answers at once.
 *
 * One file, mode 0600: a header line, then for each instance a line of JSON and the bytes of its user-data, then a trailer line with their
 * number and the SHA-256 of everything before. A new file is written beside the old one, flushed, and renamed. Its modification time is the
 * time when the view was last compared with the store.
 *
 * A file that is torn, changed, too old or of another hypervisor is rejected: not served, since an old view may give an address to its former
 * owner, and deleted, since it may contain user-data.
 *
 * With record keys the whole file is one encrypted value (record-cipher.ts). An encrypted file that the keys do not decrypt is not served, but kept:
 * it reveals nothing, and with the right key it is the last good state.
 *
 * The trailer also has a MAC under this hypervisor's own key, for the schema of this version. It proves that this hypervisor wrote the file with this
 * schema. The records are then not checked again, so that a start need not load the library of the schema. And a plain file is then served even if record
 * keys are configured: it was written before keys came into use, and is encrypted after the first resync.
 */
import { createHash, createHmac } from 'node:crypto'
import { existsSync, rmSync, statSync } from 'node:fs'
import { mkdir, open, rename, rm, utimes } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Logger } from 'pino'
import { frozen, RECORD_FORM, type Instance } from '../metadata/instance.ts'
import type { Assembled } from './validate.ts'
import { Rejection, SnapshotInput, torn, Undecryptable } from './snapshot-input.ts'
import type { RecordCipher } from '../store/crypto/record-cipher.ts'
import { SLICE_BYTES, slices } from '../runtime/turn-budget.ts'

const FORMAT = 1
const LF = Buffer.from('\n')
/** The delay between a change and the write, which collects more changes. */
const SETTLE_MS = 200
/** The longest pause after a write, in ms. It is ten times the duration of the write, so that writing takes at most about a tenth of the time. */
const MOST_BETWEEN_MS = 30_000
/** Endings of files that a crash during a write, or an older version, may have left. They contain user-data. */
const LEFTOVERS = ['.tmp', '.rejected']
const PLAIN = { head: Buffer.alloc(0), update: (part: Buffer) => part, end: () => Buffer.alloc(0) }

/** The owner of a snapshot. A file of another hypervisor, region or store is rejected. */
export interface SnapshotOwner { readonly store: string, readonly region: string | undefined, readonly hypervisor: string | undefined }

/**
 * A snapshot as it was read. `ageMs`: time since the view was compared with the store; negative if the clock was set back since. `isCurrent`: it
 * is plain or encrypted as this daemon would write it now. If it is not, or if another hypervisor or schema wrote it, the instances have no digests, so
 * the first resync reads and checks every record.
 */
export interface Snapshot { readonly instances: readonly Assembled[], readonly ageMs: number, readonly isCurrent: boolean }

/** Where the snapshot of a state directory is. */
export function snapshotPath(stateDirectory: string): string {
  return join(stateDirectory, 'view.snapshot')
}

/** `cipher` encrypts the snapshot (undefined: it is plain); `key`, of any length, is this hypervisor's secret for the MAC. */
export interface SnapshotKeys { readonly cipher: RecordCipher | undefined, readonly key: Uint8Array }

/** Reads the snapshot. Undefined if there is none that may be served. Never throws. Deletes a rejected file. */
export async function readSnapshot(
  path: string, owner: SnapshotOwner, keys: SnapshotKeys, maxAgeMs: number, nowMs: number, log: Logger,
): Promise<Snapshot | undefined> {
  let facts: object = { path }
  try {
    for (const ending of LEFTOVERS) rmSync(path + ending, { force: true })
    const { size, mtimeMs } = statSync(path)
    const ageMs = nowMs - mtimeMs
    facts = { path, bytes: size, ageSeconds: Math.round(ageMs / 1000) }
    if (ageMs > maxAgeMs) throw new Rejection('it is older than IMDS_SNAPSHOT_MAX_AGE_SECONDS')
    const input = new SnapshotInput(path, owner.hypervisor ?? '', keys.cipher)
    try {
      const isCurrent = input.isEncrypted === (keys.cipher !== undefined)
      return { instances: await decode(input, owner, keys.key, !isCurrent), ageMs, isCurrent }
    } finally {
      input.close()
    }
  } catch (error) {
    const { code, message: reason } = error as NodeJS.ErrnoException
    if (code === 'ENOENT') return undefined
    if (error instanceof Undecryptable) log.warn({ ...facts, reason }, 'the snapshot cannot be decrypted; it stays where it is, and guests get 503 until the store answers')
    else if (error instanceof Rejection) reject(path, { ...facts, reason }, log)
    else log.warn({ ...facts, err: error }, 'the snapshot cannot be read; guests get 503 until the store answers')
    return undefined
  }
}

function reject(path: string, facts: object, log: Logger): void {
  try {
    rmSync(path)
    log.warn(facts, 'the snapshot was rejected and deleted; guests get 503 until the store answers')
  } catch (error) {
    log.warn({ ...facts, err: error }, 'the snapshot was rejected and cannot be deleted: delete it, it may hold user-data; guests get 503 until the store answers')
  }
}

/** `mustBeOurs`: the file is not plain or encrypted as the configuration demands, so it is rejected without the MAC of this hypervisor. */
async function decode(input: SnapshotInput, owner: SnapshotOwner, key: Uint8Array, mustBeOurs: boolean): Promise<Assembled[]> {
  const { header, entries, trailer, sha256 } = structureOf(input)
  if (trailer['sha256'] !== sha256 || trailer['instances'] !== entries.length) throw torn()
  if (header['imds'] !== 'snapshot' || header['format'] !== FORMAT) throw new Rejection('it has another format')
  for (const [key, value] of Object.entries(headerOf(owner))) {
    if (header[key] !== value) throw new Rejection(`its ${key} is ${JSON.stringify(header[key])}, not ${JSON.stringify(value)}`)
  }
  const isOurs = trailer['mac'] === macOf(sha256, key)
  if (mustBeOurs && !isOurs) throw new Rejection('it is not encrypted, and this hypervisor did not write it')
  const restore = isOurs ? (document: unknown) => frozen(document as Instance) : (await import('../metadata/record.ts')).restore
  return entries.map(({ document, digest, userData }) => {
    const instance = restore(document)
    if (instance === undefined || typeof digest !== 'string') throw new Rejection('it has an invalid record')
    return { instance, userData, digest: isOurs && !mustBeOurs ? digest : undefined }
  })
}

/** The content of a file. Only its form is checked. */
interface Structure {
  readonly header: Record<string, unknown>
  readonly entries: readonly { readonly document: unknown, readonly digest: unknown, readonly userData: Buffer | undefined }[]
  readonly trailer: Record<string, unknown>
  /** Of everything before the trailer. */
  readonly sha256: string
}

/** Reads a whole file. An encrypted file that is not authentic throws an Undecryptable, whatever else is wrong with it. */
function structureOf(input: SnapshotInput): Structure {
  let structure: Structure | Rejection
  try {
    structure = readStructure(input)
  } catch (error) {
    if (!(error instanceof Rejection)) throw error
    structure = error
  }
  input.authenticate()
  if (structure instanceof Rejection) throw structure
  return structure
}

function readStructure(input: SnapshotInput): Structure {
  const header = input.object()
  const entries: { document: unknown, digest: unknown, userData: Buffer | undefined }[] = []
  for (;;) {
    const line = input.object()
    if (!('instance' in line)) return { header, entries, trailer: line, sha256: input.digest() }
    const { instance: document, digest, userDataBytes } = line
    const userData = input.bytes(userDataBytes === null ? 0 : userDataBytes)
    entries.push({ document, digest, userData: userDataBytes === null ? undefined : userData })
  }
}

function macOf(sha256: string, key: Uint8Array): string {
  return createHmac('sha256', key).update(`imds snapshot ${RECORD_FORM} ${sha256}`).digest('hex')
}

/** What a writer needs. `instances` returns what to write. */
export interface SnapshotParts {
  readonly path: string
  readonly owner: SnapshotOwner
  readonly keys: SnapshotKeys
  readonly instances: () => Iterable<Assembled>
  /** The file at `path` was read at the start, so it has the content of the view until that changes. */
  readonly wasRead: boolean
  /** When the view was last compared with the store, in milliseconds since 1970: the snapshot's time, until the first resync. */
  readonly asOfMs: number
  readonly writes: { inc(labels: { result: 'written' | 'failed' }): void }
  readonly log: Logger
}

/** Keeps the file in step with the view. A write never blocks the event loop for long. */
export class SnapshotWriter {
  readonly #parts: SnapshotParts
  /** The number of changes of the view so far, and of those in the file. */
  #changes = 0
  #written = 0
  #writing: Promise<void> | undefined
  #timer: NodeJS.Timeout | undefined
  #restMs = 0
  #isFailing = false
  /** The file is a snapshot of this view, possibly without the latest changes. */
  #isOurs: boolean
  #asOfMs: number

  constructor(parts: SnapshotParts) {
    this.#parts = parts
    this.#isOurs = parts.wasRead
    this.#asOfMs = parts.asOfMs
  }

  /** The view changed: schedules a write. */
  changed(): void {
    this.#changes += 1
    this.#schedule()
  }

  /** A resync is complete: updates the file's time. */
  confirmed(): void {
    this.#asOfMs = Date.now()
    if (this.#changes !== this.#written) return
    const { path, instances } = this.#parts
    if (!this.#isOurs) {
      // A file that could not be read may be the last good state under another key, so an empty view does not replace it.
      const isEmpty = [...instances()].length === 0
      if (!isEmpty || !existsSync(path)) this.changed()
      return
    }
    const now = new Date(this.#asOfMs)
    utimes(path, now, now).catch(() => { this.changed() }) // the file was removed
  }

  /** Writes the changes that are not in the file yet. */
  async stop(): Promise<void> {
    clearTimeout(this.#timer)
    await this.#writing
    clearTimeout(this.#timer)
    if (this.#changes !== this.#written) await this.#write()
    clearTimeout(this.#timer)
  }

  #schedule(): void {
    if (this.#timer !== undefined || this.#writing !== undefined) return
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      void this.#write()
    }, SETTLE_MS + this.#restMs)
  }

  async #write(): Promise<void> {
    const changes = this.#changes
    const started = performance.now()
    this.#writing = this.#replaceFile().then(() => {
      if (this.#isFailing) this.#parts.log.info({ path: this.#parts.path }, 'the snapshot can be written again')
      this.#isFailing = false
      this.#isOurs = true
      this.#written = changes
      this.#parts.writes.inc({ result: 'written' })
      this.#restMs = Math.min(10 * (performance.now() - started), MOST_BETWEEN_MS)
    }, (error: unknown) => {
      if (!this.#isFailing) this.#parts.log.warn({ err: error, path: this.#parts.path }, 'the snapshot cannot be written: after a start without the store, guests would get older metadata')
      this.#isFailing = true
      this.#parts.writes.inc({ result: 'failed' })
      this.#restMs = MOST_BETWEEN_MS
    })
    await this.#writing
    this.#writing = undefined
    if (this.#changes !== this.#written) this.#schedule()
  }

  async #replaceFile(): Promise<void> {
    const { path } = this.#parts
    await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    const temporary = `${path}.tmp`
    const asOf = new Date(this.#asOfMs) // the time of what is written, not of a resync that completes meanwhile
    try {
      await this.#writeFile(temporary, asOf)
      await rename(temporary, path)
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => { /* the first error says more */ })
      throw error
    }
    const directory = await open(dirname(path))
    await directory.sync().finally(() => directory.close())
  }

  async #writeFile(path: string, asOf: Date): Promise<void> {
    const { owner, instances, keys: { cipher, key } } = this.#parts
    const file = await open(path, 'w', 0o600)
    try {
      const { head, update, end } = cipher?.encrypting('snapshot', owner.hypervisor ?? '', 0) ?? PLAIN
      const hash = createHash('sha256')
      let gathered: Uint8Array[] = []
      let bytes = 0
      const flush = async () => {
        const chunk = Buffer.concat(gathered)
        gathered = []
        bytes = 0
        hash.update(chunk)
        await file.writeFile(update(chunk))
      }
      const append = async (value: Uint8Array) => {
        for (const slice of slices(value)) {
          gathered.push(slice)
          bytes += slice.length
          if (bytes >= SLICE_BYTES) await flush()
        }
      }
      await file.writeFile(head)
      await append(lineOf({ imds: 'snapshot', format: FORMAT, ...headerOf(owner) }))
      let count = 0
      for (const { instance, userData, digest } of instances()) { // reads the live view, because a copy of it would take memory
        count += 1
        await append(lineOf({ instance, digest: digest ?? '', userDataBytes: userData?.length ?? null }))
        if (userData !== undefined) await append(userData)
        await append(LF)
      }
      await flush()
      const sha256 = hash.digest('hex')
      await file.writeFile(update(lineOf({ instances: count, sha256, mac: macOf(sha256, key) })))
      await file.writeFile(end())
      await file.utimes(asOf, asOf)
      await file.sync()
    } finally {
      await file.close()
    }
  }
}

/** The owner as the first line has it. */
function headerOf({ store, region, hypervisor }: SnapshotOwner): Readonly<Record<string, string | null>> {
  return { store, region: region ?? null, hypervisor: hypervisor ?? null }
}

function lineOf(value: object): Buffer {
  return Buffer.from(`${JSON.stringify(value)}\n`)
}
