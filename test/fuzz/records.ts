/**
 * Generates mutated records and checks how they are parsed.
 *
 * Parsing never throws. Its result is a valid instance that has a tree, or faults that name places in the record and
 * contain none of its values.
 */
import { isDeepStrictEqual } from 'node:util'
import type { Instance } from '../../src/metadata/instance.ts'
import { parse, parseStored } from '../../src/metadata/record.ts'
import { buildTree } from '../../src/metadata/tree.ts'
import { generateRecord } from '../support/fixtures/generated-records.ts'
import { aFullInstance } from '../support/fixtures/instance.ts'
import type { Dice } from './dice.ts'

type Json = Record<string, unknown>

/** A value of generated records that no fault may contain. */
const RECORD_MARK = 'qzvw'

const UNUSUAL_VALUES: readonly unknown[] = [
  null,
  true,
  false,
  0,
  -0,
  1,
  -1,
  1.5,
  1e308,
  Number.MAX_SAFE_INTEGER,
  2 ** 53,
  2 ** 64,
  '',
  ' ',
  '0',
  '1',
  'true',
  'null',
  RECORD_MARK,
  `${RECORD_MARK}\n`,
  `${RECORD_MARK}\r\nX: y`,
  '\0',
  '\u2028',
  '\ud800',
  '\ufeff',
  'é',
  '😀',
  '../../x',
  '%2f',
  '/',
  '.',
  '..',
  '-',
  '_index',
  '__proto__',
  'constructor',
  'toString',
  'x'.repeat(64),
  'x'.repeat(256),
  'x'.repeat(5_000),
  'srv-a',
  'usr-a',
  '127.0.0.1',
  '127.0.0.1/8',
  '0.0.0.0/0',
  '::',
  '::1/128',
  '::ffff:10.0.0.1',
  'fe80::1%eth0',
  '2a02::/16',
  '2a02:1348:178:1::/64',
  '10.0.0.1/33',
  '010.0.0.1',
  '10.1',
  '02:24:19:00:00:EE',
  '00:00:00:00:00:00',
  'ssh-rsa AAAA',
  'ssh-rsa AAAA\nssh-rsa BBBB',
  'enabled',
  'disabled',
  'required',
  [],
  {},
  [null],
  [[]],
  [{}],
  { x: RECORD_MARK },
  [RECORD_MARK],
  { length: 3 },
  { 0: 'x' },
  ['10.0.0.2'],
]

/** A valid record with up to four changes. Some of the results are still valid. */
export function mutatedRecord(dice: Dice): unknown {
  const record = structuredClone(dice.chance(0.5) ? generateRecord(dice.below(1_000_000)) : aFullInstance())
  let document: unknown = record
  for (let changes = dice.below(4) + dice.below(2); changes > 0; changes--) document = changed(dice, document)
  return JSON.parse(JSON.stringify(document))
}

/** Parses a document and checks the result. `wrong` describes what is wrong, if anything is. */
export function checkRecord(document: unknown): { readonly valid: boolean; readonly wrong?: string } {
  const before = JSON.stringify(document)
  const parsed = parse(document)
  if (JSON.stringify(document) !== before) return { valid: parsed.ok, wrong: 'parse changed its argument' }
  if (parsed.ok) return { valid: true, ...wrongOf(wrongInstance(parsed.value)) }
  const { faults } = parsed
  if (faults.length === 0) return { valid: false, wrong: 'rejected without a fault' }
  for (const { path, message } of faults) {
    if (path !== '' && !isInDocument(document, path))
      return { valid: false, wrong: `a path that is not in the document: ${path}` }
    if (message === '' || message.includes(RECORD_MARK))
      return { valid: false, wrong: `a message that is empty or contains a value of the record: ${message}` }
  }
  return { valid: false }
}

function wrongOf(wrong: string | undefined): { wrong?: string } {
  return wrong === undefined ? {} : { wrong }
}

/** Checks a valid instance: parsing or restoring it again gives an equal one, and it has a tree. */
function wrongInstance(instance: Instance): string | undefined {
  const copy = JSON.parse(JSON.stringify(instance)) as unknown
  const again = parse(copy)
  if (!again.ok || !isDeepStrictEqual(again.value, instance)) return 'an instance that parses to another one'
  const stored = parseStored(copy)
  if (!stored.ok || !isDeepStrictEqual(stored.value, instance)) return 'an instance that is restored as another one'
  buildTree(instance, Buffer.from(RECORD_MARK), {})
  return undefined
}

/** True if a JSON pointer names an existing value, or a missing member of an existing one. */
function isInDocument(document: unknown, pointer: string): boolean {
  const steps = pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
  let value = document
  for (const [n, step] of steps.entries()) {
    if (typeof value !== 'object' || value === null) return false
    if (!Object.hasOwn(value, step)) return n === steps.length - 1 || (value as Json)[step] === undefined
    value = (value as Json)[step]
  }
  return true
}

/** Makes one random change to a document. */
function changed(dice: Dice, document: unknown): unknown {
  if (dice.chance(0.01)) return dice.pick(UNUSUAL_VALUES)
  const places = placesOf(document)
  if (places.length === 0) return document
  const [holder, key] = dice.pick(places)
  const value = holder[key]
  switch (dice.below(8)) {
    case 0:
      Reflect.deleteProperty(holder, key)
      break
    case 1:
      holder[`${key}${dice.pick(['x', '/~', '__proto__', ' ', 'é'])}`] = value
      break
    case 2:
      holder[key] = [value, value]
      break
    case 3:
      holder[key] = typeof value === 'string' ? mangledText(dice, value) : value
      break
    case 4:
      if (Array.isArray(value)) value.push(...structuredClone(value as unknown[]))
      break
    case 5:
      if (Array.isArray(value))
        holder[key] = Array.from({ length: dice.pick([0, 1, 3, 33, 65, 257]) }, () =>
          structuredClone((value as unknown[])[0]),
        )
      break
    case 6: {
      const [other, place] = dice.pick(places)
      holder[key] = structuredClone(other[place])
      break
    }
    default:
      holder[key] = structuredClone(dice.pick(UNUSUAL_VALUES))
  }
  return document
}

/** Every object or list in a document, with each of its keys. */
function placesOf(document: unknown): [Json, string][] {
  if (typeof document !== 'object' || document === null) return []
  return Object.keys(document).flatMap((key) => [
    [document as Json, key] as [Json, string],
    ...placesOf((document as Json)[key]),
  ])
}

function mangledText(dice: Dice, text: string): string {
  const at = dice.below(text.length + 1)
  return (
    text.slice(0, at) +
    dice.pick(['', '\n', '\0', ' ', '-', '.', '0', 'A', 'é', '/', '=', '%', '\u2028', RECORD_MARK]) +
    text.slice(at + dice.below(2))
  )
}
