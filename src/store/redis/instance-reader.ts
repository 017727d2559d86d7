/**
 * Reads instances from Redis, with every read bounded in bytes: the lengths of all values are asked first, and a value
 * that is too long is a fault of its instance.
 */
import { formatTooLong as formatUserDataTooLong } from '../../metadata/user-data.ts'
import { sha256InSlices, TurnBudget } from '../../limits/turn-budget.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import { readStored } from '../crypto/stored.ts'
import { placeOfTombstone } from '../order.ts'
import type { Loaded } from '../source.ts'
import { valueOf } from './connection.ts'
import type { Keys } from './keys.ts'
import { formatTooLong, lengthCommands, lengthsOf, MAX_DIGEST_BYTES, type Lengths } from './lengths.ts'

/** The most bytes of records and user-data that one read asks for, unless a single instance has more. */
const MAX_READ_BYTES = 4 * 1024 * 1024
const MAX_TOMBSTONE_BYTES = 128
const WRONG_TYPE = 'a key of this instance has a wrong type'

/** Runs commands as one pipeline. A reply may be an Error. */
export type Ask = (commands: (string | number)[][]) => Promise<unknown[]>

/**
 * An instance to read: the `fields` of its key, `digest` first, and the `bytes` of the others. `fault`: why these are not
 * read.
 */
interface ToRead {
  readonly id: string
  readonly fields: readonly string[]
  readonly bytes: number
  readonly fault: { readonly kind: 'unreadable' | 'user-data'; readonly reason: string } | undefined
}

/** How to read instances: with a `cipher` unencrypted values are rejected; without it records are not encrypted. */
export interface InstanceReaderParts {
  readonly ask: Ask
  readonly keys: Keys
  readonly cipher: RecordCipher | undefined
  readonly userDataMaxBytes: number
}

/** Reads instances, a few at a time. */
export class InstanceReader {
  readonly #parts: InstanceReaderParts
  readonly #budget = new TurnBudget()

  constructor(parts: InstanceReaderParts) {
    this.#parts = parts
  }

  /** Loads instances in the given order, as fast as the caller takes them. Rejects when the store does not answer. */
  async *load(ids: readonly string[]): AsyncGenerator<Loaded> {
    const { ask, keys } = this.#parts
    const replies = await ask(ids.flatMap((id) => lengthCommands(keys.instance(id))))
    let some: ToRead[] = []
    let bytes = 0
    for (const id of ids) {
      const lengths = replies.splice(0, 3)
      const next = this.#toRead(id, lengths.some(isWrongType) ? undefined : lengthsOf(lengths))
      if (some.length > 0 && bytes + next.bytes > MAX_READ_BYTES) {
        yield* this.#read(some)
        some = []
        bytes = 0
      }
      some.push(next)
      bytes += next.bytes
    }
    yield* this.#read(some)
  }

  #toRead(id: string, lengths: Lengths | undefined): ToRead {
    const { cipher, userDataMaxBytes } = this.#parts
    const unread = (kind: 'unreadable' | 'user-data', reason: string, fields = ['digest']): ToRead => ({
      id,
      fields,
      bytes: 0,
      fault: { kind, reason },
    })
    if (lengths === undefined) return unread('unreadable', WRONG_TYPE, [])
    const { record, digest, userData } = lengths
    const reason = formatTooLong(lengths, cipher !== undefined)
    if (reason !== undefined) return unread('unreadable', reason, digest > MAX_DIGEST_BYTES ? [] : ['digest'])
    // The limit is a little higher, because an encrypted value is longer than its contents.
    if (userData > userDataMaxBytes + MAX_ENCRYPTION_OVERHEAD_BYTES)
      return unread('user-data', `the user-data is ${formatUserDataTooLong(userData, userDataMaxBytes)}`)
    return { id, fields: ['digest', 'record', 'user-data'], bytes: record + userData, fault: undefined }
  }

  async *#read(some: readonly ToRead[]): AsyncGenerator<Loaded> {
    const { ask, keys } = this.#parts
    const replies = await ask(
      some.flatMap(({ id, fields }) => {
        const tombstone = ['getrange', keys.tombstone(id), 0, MAX_TOMBSTONE_BYTES - 1]
        // Twice: a put or a removal between two of these commands would make an instance look lost.
        return fields.length === 0 ? [] : [tombstone, ['hmgetBuffer', keys.instance(id), ...fields], tombstone]
      }),
    )
    for (const { id, fields, fault } of some) {
      // frees them while the others are processed
      const [before, values = [], after] = replies.splice(0, fields.length === 0 ? 0 : 3)
      if ([before, values, after].some(isWrongType)) {
        yield { kind: 'unreadable', id, digest: undefined, reason: WRONG_TYPE }
        continue
      }
      const [digest, record, userData] = valueOf(values) as (Buffer | undefined)[]
      if (fault !== undefined) yield { id, digest: digest?.toString(), ...fault }
      else if (record !== undefined) yield await this.#interpret(id, digest?.toString(), record, userData)
      else {
        const tombstone = [after, before].map((reply) => String(valueOf(reply))).find((text) => text !== '')
        if (tombstone === undefined) yield { kind: 'absent', id }
        else yield { kind: 'removed', id, order: placeOfTombstone(tombstone) }
      }
    }
  }

  async #interpret(
    id: string,
    digest: string | undefined,
    record: Buffer,
    userData: Buffer | undefined,
  ): Promise<Loaded> {
    const stored = await readStored(id, record, userData, this.#parts.cipher, this.#budget)
    if (stored.kind !== 'record') return { id, digest, ...stored }
    const userDataSha256 = stored.userData && (await sha256InSlices(stored.userData, this.#budget))
    return { id, digest, ...stored, userDataSha256 }
  }
}

/** True for the error of a key with a wrong type, which is a fault of one instance, not of the store. */
function isWrongType(reply: unknown): boolean {
  return reply instanceof Error && reply.message.startsWith('WRONGTYPE ')
}
