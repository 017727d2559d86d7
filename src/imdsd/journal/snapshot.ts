/** Reads and writes a snapshot (journal.ts has the format). */
import { createHash, createHmac } from 'node:crypto'
import { closeSync, fstatSync, readSync } from 'node:fs'
import { RECORD_FORM } from '../../metadata/instance.ts'
import { SLICE_BYTES, slices } from '../../limits/turn-budget.ts'
import { openRegularFileSync } from '../../runtime/regular-file.ts'
import { HEAD_BYTES, isEncrypted, TAG_BYTES, type RecordCipher } from '../../store/crypto/record-cipher.ts'
import {
  EncodedReader,
  encodeInstance,
  lineOf,
  restoreOf,
  type EncodedInstance,
  type SavedInstance,
} from './encoding.ts'
import type { Removals } from '../view/view.ts'
import type { Disk } from './disk.ts'
import { headerOf, type StateKeys, type StateOwner } from './state-files.ts'
import { Mismatch, PlainSnapshot, RejectedFile, torn, Undecryptable } from './unserved-file.ts'

const FORMAT = 1
/** What is written before a flush, so that no single flush takes long on a slow disk. */
const FLUSH_BYTES = 8 * 1024 * 1024
const PLAIN = { head: Buffer.alloc(0), update: (part: Buffer) => part, end: () => Buffer.alloc(0) }

/** Names a journal: its generation, and the MAC of its header, which no other journal has. */
export interface JournalStart {
  readonly generation: number
  readonly mac: string
}

/**
 * A snapshot as it was read. `isComplete`: a resync had completed for this view, so it lacks no instance. `isCurrent`: this
 * daemon would write it with the same keys and schema. `journal`: the one that continues it.
 */
export interface Snapshot {
  readonly instances: readonly SavedInstance[]
  readonly removals: Removals
  readonly isComplete: boolean
  readonly isCurrent: boolean
  readonly journal: JournalStart
}

/**
 * Reads a snapshot in one turn of the event loop. Throws a RejectedFile if it is torn or was changed, a Mismatch if it is
 * another owner's or was written with other keys, or an error of the file system.
 */
export async function readSnapshot(path: string, owner: StateOwner, keys: StateKeys): Promise<Snapshot> {
  const { bytes, keyName } = decryptedFile(readWhole(path), owner.hypervisor ?? '', keys.cipher)
  const reader = new EncodedReader(bytes)
  const header = reader.line()
  const encoded: EncodedInstance[] = []
  let bodyBytes = reader.position
  let line = reader.line()
  for (; 'instance' in line; line = reader.line()) {
    encoded.push(reader.instance(line))
    bodyBytes = reader.position
  }
  const { sha256, instances: count, mac } = line
  if (!reader.isAtEnd || sha256 !== sha256Of(bytes.subarray(0, bodyBytes)) || count !== encoded.length) throw torn()
  const { imds, format, schema } = header
  if (imds !== 'snapshot' || format !== FORMAT) throw new RejectedFile('it has another format')
  checkOwner(header, owner)
  const key = keys.macKeys.findIndex((one) => mac === macOf(sha256, one))
  if (key === -1)
    throw new Mismatch('it was written with another key of this hypervisor (IMDS_TOKEN_KEYS_FILE or token-key)')
  const restore = await restoreOf(schema)
  const instances = encoded.map((one) => ({
    ...restore(one),
    ...(one.unconfirmed !== undefined && { unconfirmed: one.unconfirmed }),
    ...(one.reports !== undefined && { reports: one.reports }),
  }))
  const isCurrent = key === 0 && schema === RECORD_FORM && keys.cipher?.current === keyName
  // files of before there was an order have none
  const { floor = 0, removed = [] } = header as { floor?: number; removed?: [string, number][] }
  return {
    instances,
    removals: { floor, removed: new Map(removed) },
    isComplete: header['complete'] === true,
    isCurrent,
    journal: journalOf(header['journal']),
  }
}

function readWhole(path: string): Buffer {
  const fd = openRegularFileSync(path, 'refuse')
  try {
    const bytes = Buffer.allocUnsafeSlow(fstatSync(fd).size)
    for (let at = 0; ;) {
      const read = readSync(fd, bytes, at, Math.min(SLICE_BYTES, bytes.length - at), at)
      at += read
      if (read === 0) return bytes.subarray(0, at)
    }
  } finally {
    closeSync(fd)
  }
}

/**
 * The contents of a file, and the name of the key that it was encrypted with (undefined: it is plain). They replace the
 * encrypted file in its memory: there may be much user-data.
 */
function decryptedFile(
  file: Buffer,
  hypervisor: string,
  cipher: RecordCipher | undefined,
): { readonly bytes: Buffer; readonly keyName: string | undefined } {
  if (!isEncrypted(file)) {
    // Whoever can write the state directory can read the hypervisor's own key there, so its MAC does not prove who
    // wrote a plain file.
    if (cipher !== undefined)
      throw new PlainSnapshot('it is not encrypted, and there are record keys (IMDS_RECORD_KEYS_FILE)')
    return { bytes: file, keyName: undefined }
  }
  if (cipher === undefined) throw new Undecryptable('it is encrypted, and there are no keys (IMDS_RECORD_KEYS_FILE)')
  const ends = { head: file.subarray(0, HEAD_BYTES), tag: Buffer.from(file.subarray(-TAG_BYTES)), length: file.length }
  const decryption = cipher.decrypting('snapshot', hypervisor, ends)
  if (decryption.kind === 'rejected') throw new Undecryptable(`it ${decryption.reason}`)
  let length = 0
  for (const slice of slices(file.subarray(decryption.start, -TAG_BYTES)))
    length += decryption.update(slice).copy(file, length)
  const rejected = decryption.end()
  if (rejected !== undefined) throw new Undecryptable(`it ${rejected.reason}`)
  return { bytes: file.subarray(0, length), keyName: decryption.key }
}

/** Throws a Mismatch if a header names another owner. */
export function checkOwner(header: Readonly<Record<string, unknown>>, owner: StateOwner): void {
  for (const [key, value] of Object.entries(headerOf(owner))) {
    if (header[key] !== value)
      throw new Mismatch(`its ${key} is ${JSON.stringify(header[key])}, not ${JSON.stringify(value)}`)
  }
}

function journalOf(value: unknown): JournalStart {
  const { generation, mac } = (value ?? {}) as Partial<JournalStart>
  if (!Number.isSafeInteger(generation) || typeof mac !== 'string') throw torn()
  return { generation: generation!, mac }
}

function sha256Of(bytes: Buffer): string {
  const hash = createHash('sha256')
  for (const slice of slices(bytes)) hash.update(slice)
  return hash.digest('hex')
}

function macOf(sha256: string, key: StateKeys['macKeys'][number]): string {
  return createHmac('sha256', key).update(`imds snapshot ${FORMAT} ${sha256}`).digest('hex')
}

/** What a snapshot is made of. `asOf`: when the view was last compared with the store. */
export interface SnapshotContent extends Pick<Snapshot, 'isComplete' | 'journal' | 'removals'> {
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly instances: Iterable<SavedInstance>
  readonly asOf: Date
}

/**
 * Writes a snapshot to `path` and flushes it, in short turns of the event loop. Calls `progress` after each write.
 * Returns its size in bytes.
 */
export async function writeSnapshot(
  disk: Disk,
  path: string,
  content: SnapshotContent,
  progress: () => void,
): Promise<number> {
  const {
    owner,
    keys: {
      cipher,
      macKeys: [key],
    },
    instances,
    asOf,
    isComplete,
    journal,
    removals: { floor, removed },
  } = content
  const file = await disk.create(path)
  try {
    const { head, update, end } = cipher?.encrypting('snapshot', owner.hypervisor ?? '', 0) ?? PLAIN
    const hash = createHash('sha256')
    let gathered: Uint8Array[] = []
    let bytes = 0
    let unflushed = 0
    const flush = async () => {
      const chunk = Buffer.concat(gathered)
      gathered = []
      bytes = 0
      hash.update(chunk)
      await file.writeFile(update(chunk))
      unflushed += chunk.length
      if (unflushed >= FLUSH_BYTES) {
        unflushed = 0
        await file.datasync()
      }
      progress()
    }
    const append = async (value: Uint8Array) => {
      for (const slice of slices(value)) {
        gathered.push(slice)
        bytes += slice.length
        if (bytes >= SLICE_BYTES) await flush()
      }
    }
    await file.writeFile(head)
    await append(
      lineOf({
        imds: 'snapshot',
        format: FORMAT,
        ...headerOf(owner),
        schema: RECORD_FORM,
        complete: isComplete,
        floor,
        removed: [...removed],
        journal,
      }),
    )
    let count = 0
    for (const record of instances) {
      // reads the live view, because a copy of it would take memory
      count += 1
      for (const part of encodeInstance(record)) await append(part)
    }
    await flush()
    const sha256 = hash.digest('hex')
    await file.writeFile(update(lineOf({ instances: count, sha256, mac: macOf(sha256, key!) })))
    await file.writeFile(end())
    await file.utimes(asOf, asOf)
    await file.sync()
    return (await file.stat()).size
  } finally {
    await file.close()
  }
}
