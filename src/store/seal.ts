/**
 * The rule of seals, for every store. publish.lua repeats it for records that it can read.
 *
 * A seal on user-data stays until `unseal` lifts it: a record that is published without a seal gets the one in the
 * store, and a removal keeps the seal in the tombstone. Sealing and unsealing publish a new revision. So every
 * hypervisor reads the change, a put of an older revision is stale, and the launch gate can wait for the change.
 */
import { sealOf } from '../metadata/record.ts'

/** The time since which user-data is sealed (RFC 3339); undefined: it is not sealed. */
export type Seal = string | undefined

/**
 * The seal that a record gets:
 *
 *   the write lifts seals     that of the record
 *   the store has a seal      that of the store
 *   otherwise                 that of the record
 */
export function sealAfter(inStore: Seal, ofRecord: Seal, lifts: boolean): Seal {
  return lifts ? ofRecord : (inStore ?? ofRecord)
}

/** Returns the document with a seal; unchanged if there is none. */
export function withSeal(document: unknown, sealedAt: Seal): unknown {
  return sealedAt === undefined ? document : { ...(document as object), sealedAt }
}

/** Returns the next revision of a document, with its seal set or (undefined) removed. */
export function changeSealOf(document: unknown, revision: number, sealedAt: Seal): unknown {
  const next: Record<string, unknown> = { ...(document as object), revision }
  delete next['sealedAt']
  return withSeal(next, sealedAt)
}

/** The content of a tombstone: the revision of the removal, and the incarnation and the seal that the instance had. */
export interface Tombstone {
  readonly revision: number
  readonly incarnation?: string | undefined
  readonly sealedAt?: string
}

/** Formats a tombstone: `REVISION [i=INCARNATION] [SEALED-AT]`. */
export function formatTombstone({ revision, incarnation, sealedAt }: Tombstone): string {
  const words = [revision, incarnation === undefined ? undefined : `i=${incarnation}`, sealedAt]
  return words.filter((word) => word !== undefined).join(' ')
}

/**
 * Parses a tombstone, `REVISION [ORDER] [i=INCARNATION] [SEALED-AT]` (those in Redis have an order); undefined for any
 * other text. An invalid time is ignored: the tombstone then has no seal.
 */
export function parseTombstone(text: string): Tombstone | undefined {
  const [revision = '', ...rest] = text.trim().split(' ')
  if (!/^\d+$/.test(revision)) return undefined
  const sealedAt = sealOf({ sealedAt: rest.at(-1) })
  const incarnation = rest.find((word) => word.startsWith('i='))?.slice(2)
  return {
    revision: Number(revision),
    ...(incarnation !== undefined && { incarnation }),
    ...(sealedAt !== undefined && { sealedAt }),
  }
}
