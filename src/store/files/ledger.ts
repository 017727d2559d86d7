/**
 * The ledger of a directory: the last revision, the seal and the addresses of each instance.
 *
 * The records contain the same facts, but people edit records. If a record cannot be read, or is gone without a tombstone, daemons serve its last good
 * state, and the ledger protects that state from other publishes. A valid record or tombstone always overrides the ledger. So the ledger may be lost:
 * the next write rebuilds it from the records, and only instances whose records cannot be read at that time are unprotected.
 */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import Type, { type Static } from 'typebox'
import Value from 'typebox/value'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import { parseStored, restore, sealOf } from '../../metadata/record.ts'
import { userDataFaults } from '../../metadata/user-data.ts'
import { idOfFile, loadFiles } from './source.ts'
import { firstSeal, parseTombstone } from '../seal.ts'
import type { Loaded } from '../source.ts'

const ProtectionSchema = Type.Object({
  revision: Type.Integer({ minimum: 0 }),
  sealedAt: Type.Optional(Type.String()),
  ranges: Type.Array(Type.Object({ network: Type.String(), range: Type.String() })),
  isRemoved: Type.Boolean(),
})
const LedgerSchema = Type.Object({ version: Type.Literal(1), instances: Type.Record(Type.String(), ProtectionSchema) })

/** What later publishes must respect. A removed instance owns no address. */
export type Protection = Static<typeof ProtectionSchema>
/** By id. */
export type Protections = Map<string, Protection>

/** Formats the text of the ledger's file. */
export function formatLedger(protections: Protections): string {
  return `${JSON.stringify({ version: 1, instances: Object.fromEntries([...protections].sort()) })}\n`
}

/** Reads the ledger; empty if the file does not exist or is not a ledger. */
export async function readLedger(path: string): Promise<Protections> {
  try {
    const ledger: unknown = JSON.parse(await readFile(path, 'utf8'))
    return new Map(Value.Check(LedgerSchema, ledger) ? Object.entries(ledger.instances) : [])
  } catch (error) {
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === 'ENOENT') return new Map()
    throw error
  }
}

/** Computes the protections from the files and the ledger. Rejects when a file cannot be read and the ledger does not know its instance. */
export async function survey(directory: string, remembered: Protections): Promise<Protections> {
  const ids = new Set([...(await readdir(directory)).map(idOfFile).filter((id) => id !== undefined), ...remembered.keys()])
  const protections: Protections = new Map()
  for (const id of [...ids].sort()) {
    const protection = await protectionOf(directory, id, remembered.get(id))
    if (protection !== undefined) protections.set(id, protection)
  }
  return protections
}

/** The protection of an instance whose record is published. */
export function publishedAs(instance: Instance, sealedAt: string | undefined): Protection {
  return { revision: instance.revision, ...sealedAt !== undefined && { sealedAt }, ranges: rangesOf(instance), isRemoved: false }
}

/** The protection of an instance that is removed. */
export function removedAt(revision: number, sealedAt: string | undefined): Protection {
  return { revision, ...sealedAt !== undefined && { sealedAt }, ranges: [], isRemoved: true }
}

async function protectionOf(directory: string, id: string, remembered: Protection | undefined): Promise<Protection | undefined> {
  const loaded = await loadFiles(directory, id).catch((error: unknown) => {
    if (remembered === undefined) throw error
    return undefined
  })
  if (loaded === undefined) return remembered
  if (loaded.kind === 'absent') return remembered?.isRemoved === true ? undefined : remembered
  const tombstone = await tombstoneOf(directory, id)
  if (loaded.kind === 'removed') return tombstone ?? (remembered && removedAt(remembered.revision, remembered.sealedAt))
  const valid = validInstance(loaded)
  return valid === undefined ? faulty(loaded, remembered ?? tombstone) : publishedAs(valid, firstSeal(valid.sealedAt, tombstone?.sealedAt))
}

function validInstance(loaded: Loaded): Instance | undefined {
  const parsed = loaded.kind === 'record' ? parseStored(loaded.document) : undefined
  if (loaded.kind !== 'record' || parsed?.ok !== true || parsed.value.id !== loaded.id) return undefined
  return userDataFaults(parsed.value, loaded.userData, loaded.userDataSha256, Infinity).length === 0 ? parsed.value : undefined
}

/** The protection of an instance whose record is faulty: the one in the ledger, and a seal that can be read. */
function faulty(loaded: Loaded, known: Protection | undefined): Protection | undefined {
  const document = loaded.kind === 'record' ? loaded.document : undefined
  const instance = restore(document) // a daemon may serve a record that only exceeds a newer bound
  const sealedAt = firstSeal(sealOf(document), known?.sealedAt)
  if (known !== undefined) return { ...known, ...sealedAt !== undefined && { sealedAt } }
  if (instance !== undefined) return publishedAs(instance, sealedAt)
  return sealedAt === undefined ? undefined : { revision: 0, sealedAt, ranges: [], isRemoved: false }
}

async function tombstoneOf(directory: string, id: string): Promise<Protection | undefined> {
  const tombstone = parseTombstone(await readFile(join(directory, `${id}.removed`), 'utf8').catch(() => ''))
  return tombstone && removedAt(tombstone.revision, tombstone.sealedAt)
}
