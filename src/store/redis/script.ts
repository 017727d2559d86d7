/**
 * The commands of publish.lua as typed functions: formats their arguments and parses their answers. The header of the
 * script is their reference.
 */
import type {
  Converted,
  EncryptedValues,
  EncryptedWritten,
  NotAbove,
  WriteOptions,
} from '../crypto/encrypting-writer.ts'
import type { RecordChange, Written } from '../backend.ts'
import { StoreBehind, type RemoveOptions, type RemoveResult } from '../publisher.ts'

/** A run of the script: its arguments after the key. */
export type ScriptArguments = readonly (string | Buffer)[]
export type ScriptAnswer = readonly [verdict: string, ...details: string[]]

export function putArguments({ document, userData, liftsSeal, dryRun }: RecordChange): ScriptArguments {
  const bytes = typeof userData === 'string' ? [userData] : ['set', Buffer.from(userData)]
  return [...(dryRun ? ['dry-run'] : []), liftsSeal ? 'unseal' : 'put', JSON.stringify(document), ...bytes]
}

export function parsePut(answer: ScriptAnswer): Written {
  if (answer[0] === 'refused' && answer[1] === 'user-data') return { kind: 'user-data-changed' }
  return parseWritten(answer)
}

export function putEncryptedArguments(
  values: EncryptedValues,
  { liftsSeal, onlyIf, dryRun }: WriteOptions,
): ScriptArguments {
  return [
    ...(dryRun ? ['dry-run'] : []),
    liftsSeal ? 'unseal-encrypted' : 'put-encrypted',
    ...valueArguments(values),
    onlyIf === undefined ? '' : formatDigest(onlyIf.digest),
  ]
}

export function formatDigest(digest: string | undefined): string {
  return digest ?? 'none'
}

export function parsePutEncrypted(answer: ScriptAnswer): EncryptedWritten {
  const [verdict, reason, detail = ''] = answer
  if (verdict === 'refused' && reason === 'changed') return { kind: 'changed' }
  if (verdict === 'refused' && reason === 'sealed') return { kind: 'sealed', sealedAt: detail }
  if (verdict === 'refused' && reason === 'order') return { kind: 'order', last: Number(detail) }
  return parseWritten(answer)
}

/** The facts that the script compares, the record, and the user-data (empty if there is none). */
export function valueArguments(values: EncryptedValues): ScriptArguments {
  const { instance, order, isFromStore, sealedAt, record, userData } = values
  const { id, incarnation, revision, region, interfaces, hypervisors } = instance
  const facts = {
    schema: 1,
    id,
    incarnation,
    revision,
    order,
    ...(isFromStore && { fromStore: true }),
    region,
    hypervisors,
    sealedAt,
    interfaces: interfaces.map(({ network, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => ({
      network,
      ipv4Addresses,
      ipv6Addresses,
      ipv6Prefixes,
    })),
  }
  return [JSON.stringify(facts), record, userData ?? Buffer.alloc(0)]
}

/** The outcome of `encrypt`. */
export function parseEncrypted(answer: ScriptAnswer): Converted | NotAbove {
  const [verdict, reason, last] = answer
  return verdict === 'refused' && reason === 'order' ? { kind: 'order', last: Number(last) } : parseConverted(answer)
}

/** The outcome of `decrypt`, and of `encrypt` except for its place. */
export function parseConverted([verdict, ...details]: ScriptAnswer): Converted {
  if (verdict !== 'refused') return { kind: 'converted', order: Number(details[1]) }
  if (details[0] === 'behind') throw misuse(details)
  return { kind: details[0] === 'invalid' ? 'invalid' : 'refused', reason: details.join(' ') }
}

export function removeArguments(
  verb: 'remove' | 'remove-encrypted',
  id: string,
  revision: number | undefined,
  { dryRun = false, sealedAt = '', incarnation }: RemoveOptions,
): ScriptArguments {
  const more = incarnation === undefined ? [] : [incarnation]
  const options = sealedAt === '' && more.length === 0 ? [] : [sealedAt, ...more]
  const given = revision === undefined && options.length === 0 ? [] : [String(revision ?? ''), ...options]
  return [...(dryRun ? ['dry-run'] : []), verb, id, ...given]
}

/** The outcome of a removal. Throws if the script was called wrongly. */
export function parseRemoved([verdict, ...details]: ScriptAnswer): RemoveResult {
  if (verdict === 'removed' || verdict === 'unchanged')
    return { kind: verdict, revision: Number(details[0]), order: Number(details[1]) }
  if (verdict === 'absent') return { kind: 'absent' }
  if (details[0] === 'stale') return { kind: 'stale', revision: Number(details[1]) }
  if (details[0] === 'incarnation') return { kind: 'incarnation' }
  throw misuse(details)
}

function parseWritten([verdict, ...details]: ScriptAnswer): Exclude<Written, { kind: 'user-data-changed' }> {
  if (verdict === 'published' || verdict === 'unchanged')
    return { kind: verdict, order: Number(details[1]), sealedAt: details[2] }
  const [reason, a = '', b = '', c = ''] = details
  if (reason === 'stale') return { kind: 'stale', revision: Number(a) }
  if (reason === 'incarnation') return { kind: 'incarnation' }
  if (reason === 'address-owned') return { kind: 'address-owned', network: a, address: b, owner: c }
  if (reason === 'invalid')
    return { kind: 'invalid', faults: [{ path: '', message: `the store's script refused it: ${a}` }] }
  throw misuse(details)
}

/** The error for a refusal that the publisher caused by wrong use, such as missing keys. */
function misuse(details: readonly string[]): Error {
  const [reason, , by = ''] = details
  if (reason === 'behind') return new StoreBehind(by)
  const isEncrypted = reason === 'encrypted'
  return new Error(
    isEncrypted
      ? 'the region is encrypted: give its record keys (--record-keys, IMDS_RECORD_KEYS_FILE)'
      : `the store refused: ${details.join(' ')}`,
  )
}
