/**
 * Generates mutated snapshots and checks how a start reads them.
 *
 * A snapshot is served only if its content is exactly what was written. Otherwise it is rejected with one clear log line. A forged snapshot
 * with a matching digest may be served, but must not throw. An encrypted snapshot cannot be forged.
 */
import { createHash, createSecretKey } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { pino } from 'pino'
import { parse } from '../../src/metadata/record.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import type { Assembled } from '../../src/view/validate.ts'
import { fillUserData } from '../../src/store/user-data.ts'
import { readSnapshot, SnapshotWriter, snapshotPath } from '../../src/view/snapshot.ts'
import { RecordCipher } from '../../src/store/crypto/record-cipher.ts'
import { generateRecord } from '../support/fixtures/generated-records.ts'
import type { Dice } from './dice.ts'
import { RECORD_MARK } from './inputs.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const KEY = Buffer.alloc(32, 1)
const DAY_MS = 86_400_000
const CLEAR_REASON = /"reason":"(?:it is torn|it has another format|it has an invalid record|its (?:store|region|hypervisor) is|it is (?:not )?encrypted|it was encrypted with a key|it is truncated|it is not authentic)/
const USER_DATA = [undefined, Buffer.alloc(0), Buffer.from(`${RECORD_MARK}\nnull\n{}\n\0\xff`, 'latin1'), Buffer.from('{"instances":0,"sha256":"x"}\n')] as const

/** Two snapshots of one host, of which mutated copies are read. */
export interface MutatedSnapshots {
  /** Mutates a snapshot and reads it. Returns whether it was served, and what is wrong with that, if anything is. */
  tryOne(dice: Dice): Promise<{ readonly served: boolean, readonly wrong?: string, readonly bytes: Buffer }>
  remove(): void
}

/** The cipher of the encrypted snapshots. */
export const CIPHER = new RecordCipher([{ name: 'k1', key: createSecretKey(Buffer.alloc(32, 7)) }], OWNER.region)

/** Writes the two snapshots; encrypts them if there is a cipher. */
export async function prepareSnapshots(cipher: RecordCipher | undefined): Promise<MutatedSnapshots> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-snapshots-'))
  const path = snapshotPath(directory)
  const lines: string[] = []
  const log = pino({}, { write: (line: string) => { lines.push(line) } })
  const write = async (from: number) => {
    const instances = Array.from({ length: 8 }, (_, i) => assembled(from + i, USER_DATA[i % USER_DATA.length]))
    const writer = new SnapshotWriter({ path, owner: OWNER, keys: { cipher, key: KEY }, asOfMs: Date.now(), wasRead: false, instances: () => instances, writes: { inc: () => { /* not counted */ } }, log })
    writer.changed()
    await writer.stop()
    return { instances, bytes: readFileSync(path) }
  }
  const [one, two] = [await write(1), await write(101)]

  return {
    tryOne: async (dice) => {
      const isForged = cipher === undefined && dice.chance(0.3)
      const mutated = mutate(dice, one.bytes, two.bytes)
      const bytes = isForged ? forgeDigest(mutated, dice) : mutated
      writeFileSync(path, bytes)
      lines.length = 0
      let served: readonly Assembled[] | undefined
      try {
        served = (await readSnapshot(path, OWNER, { cipher, key: KEY }, DAY_MS, Date.now(), log))?.instances
      } catch (error) {
        return { served: false, wrong: `it threw ${String(error)}`, bytes }
      }
      const isServed = served !== undefined
      const isOriginal = [one, two].some(({ instances }) => isDeepStrictEqual(served, instances))
      if (isServed && !isOriginal && !isForged) return { served: true, wrong: 'served although it is not what was written', bytes }
      if (isServed) return { served: true, bytes, ...lines.length > 0 && { wrong: 'a log line about a valid snapshot' } }
      const isClear = lines.length === 1 && CLEAR_REASON.test(lines[0]!) && !lines[0]!.includes(RECORD_MARK)
      return { served: false, bytes, ...!isClear && { wrong: `not one clear log line: ${lines.join('')}` } }
    },
    remove: () => { rmSync(directory, { recursive: true }) },
  }
}

function assembled(seed: number, userData: Buffer | undefined): Assembled {
  const parsed = parse(fillUserData(generateRecord(seed), userData, userData && sha256(userData)))
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  return { instance: parsed.value, userData, digest: sha256(Buffer.from(String(seed))) }
}

function mutate(dice: Dice, bytes: Buffer, other: Buffer): Buffer {
  let text = bytes
  for (let changes = dice.pick([0, 1, 1, 1, 2, 4]); changes > 0; changes--) text = change(dice, text, other)
  return text
}

function change(dice: Dice, bytes: Buffer, other: Buffer): Buffer {
  const at = dice.below(bytes.length + 1)
  const copy = Buffer.from(bytes)
  const lines = bytes.toString('latin1').split('\n')
  const line = dice.below(lines.length)
  const joined = () => Buffer.from(lines.join('\n'), 'latin1')
  switch (dice.below(10)) {
    case 0: return bytes.subarray(0, at)
    case 1: return bytes.subarray(at)
    case 2: return Buffer.concat([bytes.subarray(0, at), other.subarray(dice.below(other.length))])
    case 3: return Buffer.concat([bytes, other])
    case 4: lines.splice(line, 1); return joined()
    case 5: lines.splice(line, 0, lines[dice.below(lines.length)]!); return joined()
    case 6: lines[line] = dice.pick(['null', '[]', '{}', '0', '"x"', '', 'true', '{"instance":null,"digest":"x","userDataBytes":null}']); return joined()
    case 7: lines[line] = lines[line]!.replace(/"userDataBytes":[^}]*/, `"userDataBytes":${dice.pick(['-1', '-10000', '-1e9', '1e9', '1.5', '"5"', 'true', '[]', '0', '99999', '1', 'null'])}`); return joined()
    case 8: lines[line] = lines[line]!.replace(/"(?:revision|size|instances|format)":[^,}]*/, (found) => found.replace(/:.*/, `:${dice.pick(['-1', '0', '2', '1e400', '"1"', 'null', '7', '9'])}`)); return joined()
    default:
      if (at < copy.length) copy[at]! ^= 1 << dice.below(8)
      return copy
  }
}

/** Replaces the last line with the correct digest of all lines before it. */
function forgeDigest(bytes: Buffer, dice: Dice): Buffer {
  const end = bytes.lastIndexOf(0x0a, -2) + 1
  const body = bytes.subarray(0, end)
  const instances = dice.chance(0.7) ? body.toString('latin1').split('"instance":{').length - 1 : dice.below(20)
  return Buffer.concat([body, Buffer.from(`${JSON.stringify({ instances, sha256: createHash('sha256').update(body).digest('hex') })}\n`)])
}
