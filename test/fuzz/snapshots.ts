/**
 * Generates mutated snapshots and journals and checks how a start reads them.
 *
 * A view is served only if it is exactly what was written, possibly without the last changes of its journal. Otherwise
 * it is rejected with one clear log line. A forged snapshot of another version, with the right MAC, may be served,
 * but must not throw. An encrypted snapshot cannot be forged.
 */
import { createSecretKey } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { pino } from 'pino'
import { parse } from '../../src/metadata/record.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import type { ValidRecord } from '../../src/imdsd/view/validate.ts'
import { fillUserData } from '../../src/store/user-data.ts'
import { DISK } from '../../src/imdsd/journal/disk.ts'
import { Persistence } from '../../src/imdsd/journal/persistence.ts'
import { restoreView } from '../../src/imdsd/journal/restore.ts'
import { snapshotPath, type StateKeys } from '../../src/imdsd/journal/state-files.ts'
import { RecordCipher } from '../../src/store/crypto/record-cipher.ts'
import { generateRecord } from '../support/fixtures/generated-records.ts'
import { signedSnapshot } from '../support/fixtures/signed-snapshot.ts'
import type { Dice } from './dice.ts'
import { RECORD_MARK } from './inputs.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const KEY = Buffer.alloc(32, 1)
const DAY_MS = 86_400_000
const CLEAR_REASON =
  /"reason":"(?:it is torn|it has another format|it has an invalid record|its (?:store|region|hypervisor) is|it is (?:not )?encrypted|it was (?:encrypted|written) with a|it is truncated|it is not authentic|its journals? )/
const TORN_END = /"lostBytes":\d+.*the end of the journal is torn/
const USER_DATA = [
  undefined,
  Buffer.alloc(0),
  Buffer.from(`${RECORD_MARK}\nnull\n{}\n\0\xff`, 'latin1'),
  Buffer.from('{"instances":0,"sha256":"x"}\n'),
] as const

/** Two states of one host, of which mutated copies are read. */
export interface MutatedSnapshots {
  /** Mutates a file and reads all. Returns whether it was served, and what is wrong with that, if anything is. */
  tryOne(dice: Dice): Promise<{ readonly served: boolean; readonly wrong?: string; readonly bytes: Buffer }>
  remove(): void
}

/** The cipher of the encrypted snapshots. */
export const CIPHER = new RecordCipher([{ name: 'k1', key: createSecretKey(Buffer.alloc(32, 7)) }], OWNER.region)

/** Files of a state directory, and the views that they may be read as: the whole one is the last. */
interface Written {
  readonly files: ReadonlyMap<string, Buffer>
  readonly views: readonly ReadonlyMap<string, ValidRecord>[]
}

/** Writes a view and its journal twice; encrypts them if there is a cipher. */
export async function prepareSnapshots(cipher: RecordCipher | undefined): Promise<MutatedSnapshots> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-snapshots-'))
  const path = snapshotPath(directory)
  const lines: string[] = []
  const log = pino(
    {},
    {
      write: (line: string) => {
        lines.push(line)
      },
    },
  )
  const keys: StateKeys = { cipher, macKeys: cipher === undefined ? [KEY] : cipher.macKeys(OWNER.hypervisor) }
  const restore = () => restoreView({ path, owner: OWNER, keys, maxAgeMs: DAY_MS, nowMs: Date.now(), log })
  const clear = () => {
    for (const name of readdirSync(directory)) rmSync(join(directory, name))
  }
  const none = {
    inc: () => {
      /* not counted */
    },
  }

  const write = async (from: number): Promise<Written> => {
    clear()
    const view = new Map<string, ValidRecord>()
    const begin = async () =>
      new Persistence({
        disk: DISK,
        retryMs: 30_000,
        path,
        owner: OWNER,
        keys,
        restored: await restore(),
        maxAgeMs: DAY_MS,
        timeoutMs: 60_000,
        asOfMs: Date.now(),
        instances: () => view.values(),
        snapshotWrites: none,
        journalWrites: none,
        log,
      })
    const put = async (persistence: Persistence, one: ValidRecord) => {
      await persistence.append({ kind: 'replace', record: one }, false, () => {
        view.set(one.instance.id, one)
      })
      await persistence.allApplied()
    }
    const first = await begin()
    for (let i = 0; i < 8; i++) await put(first, record(from + i, USER_DATA[i % USER_DATA.length]))
    await first.stop()
    const views = [new Map(view)]
    const second = await begin()
    for (const seed of [from, from + 8, from + 9]) {
      await put(second, record(seed, USER_DATA[(seed + 1) % USER_DATA.length]))
      views.push(new Map(view))
    }
    await second.append({ kind: 'remove', id: [...view.keys()][1]! }, false, () => {
      view.delete([...view.keys()][1]!)
    })
    await second.allApplied()
    views.push(new Map(view))
    const files = new Map(readdirSync(directory).map((name) => [name, readFileSync(join(directory, name))]))
    await second.stop()
    return { files, views }
  }
  const both = [await write(1), await write(101)] as const
  lines.length = 0

  return {
    tryOne: async (dice) => {
      const [one, two] = dice.chance(0.5) ? both : [both[1], both[0]]
      const name = dice.pick([...one.files.keys()])
      const isForged = cipher === undefined && name === 'view.snapshot' && dice.chance(0.5)
      const mutated = mutate(dice, one.files.get(name)!, two.files.get(name)!)
      const bytes = isForged ? forge(mutated, dice) : mutated
      clear()
      for (const [file, content] of one.files) writeFileSync(join(directory, file), file === name ? bytes : content)
      lines.length = 0
      let restored: Awaited<ReturnType<typeof restore>>
      try {
        restored = await restore()
      } catch (error) {
        return { served: false, wrong: `it threw ${String(error)}`, bytes }
      }
      const oneLine = (pattern: RegExp) =>
        lines.length === 1 && pattern.test(lines[0]!) && !lines[0]!.includes(RECORD_MARK)
      if (restored.files !== 'served')
        return {
          served: false,
          bytes,
          ...(!oneLine(CLEAR_REASON) && { wrong: `not one clear log line: ${lines.join('')}` }),
        }
      const served = new Map(restored.instances.map((instance) => [instance.instance.id, instance]))
      const at = one.views.findLastIndex((view) => isDeepStrictEqual(served, view))
      if (at === -1 && !isForged) return { served: true, wrong: 'served although it is not what was written', bytes }
      // The end of a journal may be lost exactly between two changes, without a trace.
      const isClear = lines.length === 0 || (name !== 'view.snapshot' && oneLine(TORN_END))
      return { served: true, bytes, ...(!isClear && { wrong: `a log line about a valid view: ${lines.join('')}` }) }
    },
    remove: () => {
      rmSync(directory, { recursive: true })
    },
  }
}

function record(seed: number, userData: Buffer | undefined): ValidRecord {
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
    case 0:
      return bytes.subarray(0, at)
    case 1:
      return bytes.subarray(at)
    case 2:
      return Buffer.concat([bytes.subarray(0, at), other.subarray(dice.below(other.length))])
    case 3:
      return Buffer.concat([bytes, other])
    case 4:
      lines.splice(line, 1)
      return joined()
    case 5:
      lines.splice(line, 0, lines[dice.below(lines.length)]!)
      return joined()
    case 6:
      lines[line] = dice.pick([
        'null',
        '[]',
        '{}',
        '0',
        '"x"',
        '',
        'true',
        '{"instance":null,"digest":"x","userDataBytes":null}',
      ])
      return joined()
    case 7:
      lines[line] = lines[line]!.replace(
        /"userDataBytes":[^}]*/,
        `"userDataBytes":${dice.pick(['-1', '-10000', '-1e9', '1e9', '1.5', '"5"', 'true', '[]', '0', '99999', '1', 'null'])}`,
      )
      return joined()
    case 8:
      lines[line] = lines[line]!.replace(/"(?:revision|size|instances|format)":[^,}]*/, (found) =>
        found.replace(/:.*/, `:${dice.pick(['-1', '0', '2', '1e400', '"1"', 'null', '7', '9'])}`),
      )
      return joined()
    default:
      if (at < copy.length) copy[at]! ^= 1 << dice.below(8)
      return copy
  }
}

/** Makes a snapshot of another version, whose last line has the right digest and MAC of all lines before it. */
function forge(bytes: Buffer, dice: Dice): Buffer {
  const body = bytes.subarray(0, bytes.lastIndexOf(0x0a, -2) + 1).toString('latin1')
  return signedSnapshot(body, dice.chance(0.7) ? body.split('"instance":{').length - 1 : dice.below(20), KEY)
}
