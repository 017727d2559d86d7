/**
 * How is an instance published where records are encrypted?
 *
 * The script cannot read what it writes, so it is told what it must compare (id, revision, addresses, hypervisors, seal) beside it; daemons
 * believe none of that. What the script did by reading the record is done here: user-data that stays is encrypted anew for its new
 * revision, and a seal that is there goes into the new record. The script refuses both when the store changed meanwhile.
 */
import type { Instance } from '../../metadata/instance.ts'
import { parse, sealOf } from '../../metadata/record.ts'
import { sha256, userDataFaults } from '../../metadata/user-data.ts'
import type { DecryptResult, EncryptResult, UserDataChange, Written } from '../publish.ts'
import { readStored } from './stored.ts'
import { isEncrypted, type RecordCipher } from './record-cipher.ts'
import { TurnBudget } from '../../runtime/turn-budget.ts'

/** The script's answer: its words as publish.lua has them. */
export type ScriptAnswer = readonly [verdict: string, ...details: string[]]

/** The values of an instance as the store has them. */
export interface Values { readonly record: Buffer, readonly userData: Buffer | null, readonly digest: string }

/** What is needed of a store: the values of an instance, and a run of the script. */
export interface ScriptedStore {
  values(id: string): Promise<Values | undefined>
  script(...args: (string | Buffer)[]): Promise<ScriptAnswer>
}

const ATTEMPTS = 5

/** Writes a checked record: the script's answer, or what was found out here. */
export async function writeEncrypted(
  store: ScriptedStore, cipher: RecordCipher, instance: Instance, document: unknown, userData: UserDataChange, lifts: boolean,
): Promise<ScriptAnswer | Written> {
  const { id, revision } = instance
  const before = await store.values(id)
  const stored = before && await readStored(id, before.record, before.userData, cipher, new TurnBudget())
  const held = stored?.kind === 'record' ? stored : undefined
  const bytes = userData === 'keep' ? held?.userData ?? null : userData === 'none' ? null : userData
  if (userData === 'keep' && (bytes === null ? undefined : sha256(bytes)) !== instance.userData?.sha256) return { result: 'user-data-changed' }
  const expected = userData === 'keep' ? before?.digest ?? 'none' : ''
  let sealedAt = (lifts ? undefined : sealOf(held?.document)) ?? instance.sealedAt
  for (let attempt = 1; ; attempt++) {
    const sealed = sealedAt === undefined ? document : { ...document as object, sealedAt }
    const answer = await store.script(lifts ? 'unseal-encrypted' : 'put-encrypted', ...argumentsOf(cipher, instance, sealed, bytes), expected)
    const [verdict, reason, detail] = answer
    if (verdict === 'refused' && reason === 'changed') return { result: 'user-data-changed' }
    if (verdict === 'refused' && reason === 'stale' && Number(detail) === revision && await holds(store, cipher, id, sealed, bytes)) return { result: 'unchanged', sealedAt }
    if (verdict !== 'refused' || reason !== 'sealed' || attempt === ATTEMPTS) return answer
    sealedAt = detail // a tombstone's, or another writer's of a moment ago
  }
}

/** Encrypts what the store has with the first key, at the same revision. Plain values are taken for true only `fromPlain`. */
export async function encryptAnew(store: ScriptedStore, cipher: RecordCipher, id: string, fromPlain: boolean): Promise<EncryptResult> {
  for (let attempt = 1; ; attempt++) {
    const held = await store.values(id)
    if (held === undefined) return 'absent'
    const isPlain = !isEncrypted(held.record)
    if (isPlain && !fromPlain) return 'plain'
    const stored = await readStored(id, held.record, held.userData, isPlain ? null : cipher, new TurnBudget())
    if (stored.kind !== 'record') throw new Error(`${id}: ${stored.reason}`)
    if (!isPlain && stored.keys.every((name) => name === cipher.current)) return 'unchanged'
    const parsed = parse(stored.document)
    const digest = stored.userData && sha256(stored.userData)
    if (!parsed.ok || parsed.instance.id !== id || userDataFaults(parsed.instance, stored.userData, digest, Infinity).length > 0) {
      throw new Error(`the store's record of ${id} is faulty: publish a good one`)
    }
    const answer = await store.script('encrypt', ...argumentsOf(cipher, parsed.instance, stored.document, stored.userData), held.digest)
    if (answer[0] !== 'refused') return 'encrypted'
    if (attempt === ATTEMPTS || answer[1] === 'invalid') throw new Error(`the store refused to have ${id} encrypted: ${answer.slice(1).join(' ')}`)
  }
}

/** Decrypts what the store has, at the same revision. */
export async function decryptAnew(store: ScriptedStore, cipher: RecordCipher, id: string): Promise<DecryptResult> {
  for (let attempt = 1; ; attempt++) {
    const held = await store.values(id)
    if (held === undefined) return 'absent'
    if (!isEncrypted(held.record)) return 'unchanged'
    const stored = await readStored(id, held.record, held.userData, cipher, new TurnBudget())
    if (stored.kind !== 'record') throw new Error(`${id}: ${stored.reason}`)
    const answer = await store.script('decrypt', JSON.stringify(stored.document), Buffer.from(stored.userData ?? []), held.digest)
    if (answer[0] !== 'refused') return 'decrypted'
    if (attempt === ATTEMPTS || answer[1] === 'invalid') throw new Error(`the store refused to have ${id} decrypted: ${answer.slice(1).join(' ')}`)
  }
}

/** What the script is given: what it compares, the record, and the user-data (empty where there is none). */
function argumentsOf(cipher: RecordCipher, instance: Instance, document: unknown, bytes: Uint8Array | null): [string, Buffer, Buffer] {
  const { id, revision, region, interfaces, hypervisors } = instance
  const facts = {
    schema: 1, id, revision, region, hypervisors, sealedAt: (document as { sealedAt?: string }).sealedAt,
    interfaces: interfaces.map(({ network, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => ({ network, ipv4Addresses, ipv6Addresses, ipv6Prefixes })),
  }
  const record = cipher.encrypt('record', id, revision, Buffer.from(JSON.stringify(document)))
  return [JSON.stringify(facts), record, bytes === null ? Buffer.alloc(0) : cipher.encrypt('user-data', id, revision, bytes)]
}

/** Does the store have these very contents? Their ciphertext differs each time. */
async function holds(store: ScriptedStore, cipher: RecordCipher, id: string, document: unknown, bytes: Uint8Array | null): Promise<boolean> {
  const held = await store.values(id)
  const stored = held && await readStored(id, held.record, held.userData, cipher, new TurnBudget())
  if (stored?.kind !== 'record' || JSON.stringify(stored.document) !== JSON.stringify(document)) return false
  return bytes === null || stored.userData === null ? bytes === stored.userData : stored.userData.equals(bytes)
}
