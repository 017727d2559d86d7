/** Invariant 3 with generated records. */
import { expect, test } from 'vitest'
import { parse } from '../../../src/metadata/record.ts'
import { buildTree } from '../../../src/metadata/tree.ts'
import { diceOf, type Dice } from '../../fuzz/dice.ts'
import { generateRecord } from '../../support/fixtures/generated-records.ts'
import { aFullInstance } from '../../support/fixtures/instance.ts'

const [SEED, RECORDS] = [5, 600]

type Json = Record<string, unknown>

/** A value of generated records that no fault may contain. */
const RECORD_MARK = 'qzvw'

const UNUSUAL_VALUES: readonly unknown[] = [
  ...[null, true, false, 0, -0, 1, -1, 1.5, 1e308, Number.MAX_SAFE_INTEGER, 2 ** 53, 2 ** 64],
  ...['', ' ', '0', '1', 'true', 'null', RECORD_MARK, `${RECORD_MARK}\n`, `${RECORD_MARK}\r\nX: y`, '\0', '\u2028'],
  ...['\ud800', '\ufeff', 'é', '😀', '../../x', '%2f', '/', '.', '..', '-', '_index', '__proto__', 'constructor'],
  ...['toString', 'x'.repeat(64), 'x'.repeat(256), 'x'.repeat(5_000), 'srv-a', 'usr-a', '127.0.0.1', '127.0.0.1/8'],
  ...['0.0.0.0/0', '::', '::1/128', '::ffff:10.0.0.1', 'fe80::1%eth0', '2a02::/16', '2a02:1348:178:1::/64'],
  ...['10.0.0.1/33', '010.0.0.1', '10.1', '02:24:19:00:00:EE', '00:00:00:00:00:00', 'ssh-rsa AAAA'],
  ...['ssh-rsa AAAA\nssh-rsa BBBB', 'enabled', 'disabled', 'required', [], {}, [null], [[]], [{}]],
  ...[{ x: RECORD_MARK }, [RECORD_MARK], { length: 3 }, { 0: 'x' }, ['10.0.0.2']],
]

test('invariant 3: a mutated record is a valid instance, or faults with places and no values', () => {
  let valid = 0
  for (let n = 0; n < RECORDS; n++) valid += Number(checkRecord(mutatedRecord(diceOf(SEED, n))))
  expect(valid).toBeGreaterThan(RECORDS / 20)
  expect(RECORDS - valid).toBeGreaterThan(RECORDS / 20)
})

/** A valid record with up to four changes. Some of the results are still valid. */
function mutatedRecord(dice: Dice): unknown {
  const record = structuredClone(dice.chance(0.5) ? generateRecord(dice.below(1_000_000)) : aFullInstance())
  let document: unknown = record
  for (let changes = dice.below(4) + dice.below(2); changes > 0; changes--) document = changed(dice, document)
  return JSON.parse(JSON.stringify(document))
}

/** Parses a document and checks the result: a valid instance that has a tree, or faults. Returns whether it is valid. */
function checkRecord(document: unknown): boolean {
  const before = JSON.stringify(document)
  const parsed = parse(document)
  expect(JSON.stringify(document), 'parse changes its argument').toBe(before)
  if (!parsed.ok) {
    expect(parsed.faults, before).not.toEqual([])
    for (const { path, message } of parsed.faults) {
      expect(path === '' || isInDocument(document, path), `${path} is not in ${before}`).toBe(true)
      expect(message, before).toMatch(/./)
      expect(message, before).not.toContain(RECORD_MARK)
    }
    return false
  }
  const copy = JSON.parse(JSON.stringify(parsed.value)) as unknown
  expect(parse(copy), before).toEqual({ ok: true, value: parsed.value })
  buildTree(parsed.value, Buffer.from(RECORD_MARK), {})
  return true
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
  const [other, place] = dice.pick(places)
  const value = holder[key]
  const list = Array.isArray(value) ? (value as unknown[]) : []
  dice.pick<() => unknown>([
    () => Reflect.deleteProperty(holder, key),
    () => (holder[`${key}${dice.pick(['x', '/~', '__proto__', ' ', 'é'])}`] = value),
    () => (holder[key] = [value, value]),
    () => (holder[key] = typeof value === 'string' ? mangledText(dice, value) : value),
    () => list.push(...structuredClone(list)),
    () =>
      (holder[key] = Array.from({ length: dice.pick([0, 1, 3, 33, 65, 257]) }, () =>
        structuredClone(list[0] ?? value),
      )),
    () => (holder[key] = structuredClone(other[place])),
    () => (holder[key] = structuredClone(dice.pick(UNUSUAL_VALUES))),
  ])()
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
