/**
 * Computes what protects an instance (ledger.ts) from its files, and from what the ledger remembers.
 */
import { join } from 'node:path'
import type { Instance } from '../../metadata/instance.ts'
import { parseStored, sealOf } from '../../metadata/record.ts'
import { userDataFaults } from '../../metadata/user-data.ts'
import { firstSeal, parseTombstone } from '../seal.ts'
import type { Loaded } from '../source.ts'
import { publishedAs, removedAt, type Protection } from './ledger.ts'
import { loadFiles, readPending, TOMBSTONE_MAX_BYTES } from './load.ts'
import { readRegularFile } from '../../runtime/regular-file.ts'

/**
 * Computes the protection; undefined: nothing is to be protected. Rejects when a file cannot be read and the ledger
 * does not know its instance.
 */
export async function protectionOf(
  directory: string,
  id: string,
  remembered: Protection | undefined,
): Promise<Protection | undefined> {
  const loaded = await loadFiles(directory, id).catch((error: unknown) => {
    if (remembered === undefined) throw error
    return undefined
  })
  if (loaded === undefined) return remembered
  if (loaded.kind === 'absent')
    return remembered === undefined || remembered.isRemoved || isBlank(remembered) ? undefined : remembered
  const tombstone = await tombstoneOf(directory, id)
  if (loaded.kind === 'removed') return tombstone ?? removedAt(remembered?.revision ?? 0, remembered?.sealedAt)
  const valid = validInstance(loaded)
  if (valid !== undefined) return publishedAs(valid, firstSeal(valid.sealedAt, tombstone?.sealedAt))
  return { ...faulty(loaded, remembered ?? tombstone), isFaulty: true }
}

/** True if nothing is protected: a faulty record that no writer knew. */
function isBlank({ revision, sealedAt }: Protection): boolean {
  return revision === 0 && sealedAt === undefined
}

function validInstance(loaded: Loaded): Instance | undefined {
  const parsed = loaded.kind === 'record' ? parseStored(loaded.document) : undefined
  if (loaded.kind !== 'record' || parsed?.ok !== true || parsed.value.id !== loaded.id) return undefined
  return userDataFaults(parsed.value, loaded.userData, loaded.userDataSha256, Infinity).length === 0
    ? parsed.value
    : undefined
}

/** The protection of an instance whose record is faulty: the one in the ledger, and a seal that can be read. */
function faulty(loaded: Loaded, known: Protection | undefined): Protection {
  const document = loaded.kind === 'record' ? loaded.document : undefined
  const sealedAt = firstSeal(sealOf(document), known?.sealedAt)
  const seal = sealedAt !== undefined && { sealedAt }
  if (known !== undefined) return { ...known, ...seal }
  const parsed = parseStored(document) // valid if only the user-data is faulty
  return parsed.ok ? publishedAs(parsed.value, sealedAt) : { revision: 0, ...seal, ranges: [], isRemoved: false }
}

/** The tombstone of an instance, or of its pending removal. */
async function tombstoneOf(directory: string, id: string): Promise<Protection | undefined> {
  const pending = await readPending(directory, id).catch(() => undefined)
  const file = await readRegularFile(join(directory, `${id}.removed`), TOMBSTONE_MAX_BYTES, 'follow').catch(
    () => undefined,
  )
  const text =
    typeof pending === 'object' && pending.kind === 'remove'
      ? pending.tombstone
      : file?.kind === 'read'
        ? file.bytes.toString()
        : ''
  const tombstone = parseTombstone(text)
  return tombstone && removedAt(tombstone.revision, tombstone.sealedAt)
}
