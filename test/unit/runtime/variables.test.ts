import { expect, test } from 'vitest'
import { API_VARIABLES } from '../../../src/imds-api/service/config.ts'
import { VARIABLES } from '../../../src/imdsd/config.ts'
import {
  absolutePath,
  addressPort,
  anyText,
  describeVariables,
  listOf,
  matching,
  oneOf,
  readVariables,
  section,
  textOf,
  whole,
  parseWhole,
  type Environment,
  type VariableTable,
} from '../../../src/runtime/variables.ts'

const TABLE = {
  ...section('First', {
    X_NAME: { parse: matching((name) => /^[a-z]+$/.test(name), 'must be a name'), help: 'a name' },
    X_COUNT: { default: '3', parse: whole(1, 9), help: 'a count' },
  }),
  ...section('Second', {
    X_PARTS: { default: '', parse: listOf((part) => part !== 'bad', 'is bad'), help: 'some parts' },
    X_LEVEL: { default: 'low', parse: oneOf(['low', 'high']), help: 'a level' },
  }),
}

function read(env: Environment) {
  const { values, fault, result } = readVariables(TABLE, env, /^X_/)
  if (values.X_NAME === undefined) fault('X_NAME', 'is not set')
  if (values.X_PARTS.length > 5) fault('X_PARTS', 'has too many parts')
  if (values.X_COUNT > 5 && values.X_LEVEL === 'low') fault('X_LEVEL', 'must be high with X_COUNT')
  return result(values)
}

test('a variable that is not set, or empty, has its default or is absent', () => {
  expect(read({ X_NAME: ' a ', X_COUNT: ' ' })).toEqual({
    ok: true,
    value: { X_NAME: 'a', X_COUNT: 3, X_PARTS: [], X_LEVEL: 'low' },
    unknown: [],
  })
  expect(textOf(TABLE, { X_COUNT: '' }, 'X_COUNT')).toBe('3')
  expect(textOf(TABLE, { X_COUNT: 'x ' }, 'X_COUNT')).toBe('x')
})

test('all faults are reported at once, those of single variables first, and unknown variables last', () => {
  expect(read({ X_COUNT: '6', X_PARTS: 'bad, good,,worse,bad', X_CONT: '1', OTHER: '1' })).toEqual({
    ok: false,
    faults: [
      { variable: 'X_PARTS', message: '"bad" is bad' },
      { variable: 'X_PARTS', message: '"bad" is bad' },
      { variable: 'X_NAME', message: 'is not set' },
      { variable: 'X_LEVEL', message: 'must be high with X_COUNT' },
      { variable: 'X_CONT', message: 'is unknown' },
    ],
  })
})

test('an invalid variable has its default in later checks, which report nothing more about it', () => {
  expect(read({ X_NAME: 'Ada', X_COUNT: '99', X_LEVEL: 'x' })).toEqual({
    ok: false,
    faults: [
      { variable: 'X_NAME', message: 'must be a name' },
      { variable: 'X_COUNT', message: 'must be a whole number from 1 to 9, in decimal digits' },
      { variable: 'X_LEVEL', message: 'must be one of low, high' },
    ],
  })
})

test('an unknown variable of the program is named beside a valid configuration, which is frozen', () => {
  const parsed = read({ X_NAME: 'a', X_CONT: '1', OTHER: '1' })
  expect(parsed).toMatchObject({ ok: true, unknown: ['X_CONT'] })
  expect(parsed.ok && Object.isFrozen(parsed.value)).toBe(true)
})

test('without a configuration there is no result, even without faults', () => {
  expect(readVariables(TABLE, {}, /^X_/).result(undefined)).toEqual({ ok: false, faults: [] })
})

test('--help has each variable in its section, with its default', () => {
  expect(describeVariables(TABLE).split('\n')).toEqual([
    'First:',
    '  X_NAME   a name',
    '  X_COUNT  a count (default: 3)',
    'Second:',
    '  X_PARTS  some parts',
    '  X_LEVEL  a level (default: low)',
  ])
})

test('the parsers accept their form and name it otherwise', () => {
  expect(anyText('x')).toEqual({ ok: true, value: 'x' })
  expect(absolutePath('/x')).toEqual({ ok: true, value: '/x' })
  expect(absolutePath('x')).toEqual({ ok: false, faults: ['must be an absolute path'] })
  expect(addressPort('::1:1')('[::1]:1')).toEqual({ ok: true, value: { host: '::1', port: 1 } })
  expect(addressPort('127.0.0.1:1')('x:1')).toEqual({
    ok: false,
    faults: ['must be ADDRESS:PORT, such as 127.0.0.1:1'],
  })
})

test.each<[string, VariableTable]>([
  ['imdsd', VARIABLES],
  ['imds-api', API_VARIABLES],
])('every default of %s is valid, and every row has a line of help', (_program, table) => {
  for (const [name, row] of Object.entries(table)) {
    expect([name, row.default === undefined || row.parse(row.default).ok]).toEqual([name, true])
    expect(row.help).toMatch(/^\S.{5,}$/)
  }
})

test('a whole number is decimal digits within its limits', () => {
  expect(['60', '61', '120'].map((text) => parseWhole(text, 60, 120))).toEqual([60, 61, 120])
  expect(parseWhole('0', 0, 1)).toBe(0)
  expect(['59', '121', '9'.repeat(400)].map((text) => parseWhole(text, 60, 120))).toEqual([
    undefined,
    undefined,
    undefined,
  ])
})

test.each([
  '',
  ' ',
  '0x50',
  '0b1010000',
  '0o120',
  '8e1',
  '80.0',
  '80.',
  '+80',
  '-80',
  '080',
  '8_0',
  '80 ',
  '80s',
  '８０',
  'Infinity',
  'NaN',
])('%j is no whole number', (text) => expect(parseWhole(text, 0, 1000)).toBeUndefined())
