/**
 * The catalogue as a whole, with generated records. test/contract/tree.test.ts has the exact values of each category.
 */
import { expect, test } from 'vitest'
import { CATEGORIES } from '../../../src/metadata/categories.ts'
import { generateRecord } from '../../support/fixtures/generated-records.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aFullInstance } from '../../support/fixtures/instance.ts'

const PROVIDER = { domain: 'example.com', partition: 'example' }
const INSTANCES = [aFullInstance(), ...Array.from({ length: 100 }, (_, seed) => generateRecord(seed + 1))].map(parsed)
const ALL = CATEGORIES.flatMap((category) =>
  INSTANCES.map((instance) => ({ ...category, found: category.entries({ instance, provider: PROVIDER }) })),
)

test('each category is one row, below meta-data/, with a date', () => {
  const patterns = CATEGORIES.map(({ pattern }) => pattern)
  expect(patterns.filter((pattern, i) => patterns.indexOf(pattern) !== i)).toEqual([])
  expect(patterns.filter((pattern) => !/^meta-data(\/([a-z0-9-]+|\{[a-z-]+\}|[a-z]+\{n\}))+$/.test(pattern))).toEqual(
    [],
  )
  expect(CATEGORIES.filter(({ since }) => !/^(1\.0|\d{4}-\d\d-\d\d)$/.test(since))).toEqual([])
})

test('each value has the parameters of its pattern, and none of them can change the path', () => {
  for (const { pattern, found } of ALL) {
    for (const { parameters } of found) {
      expect([pattern, parameters.length]).toEqual([pattern, pattern.match(/\{/g)?.length ?? 0])
      expect(parameters.filter((parameter) => parameter === '' || /[/{}\s]/.test(parameter))).toEqual([])
    }
  }
})

test('no two values of a category have the same path', () => {
  for (const { pattern, found } of ALL) {
    const paths = found.map(({ parameters }) => parameters.join('/'))
    expect([pattern, paths.filter((path, i) => paths.indexOf(path) !== i)]).toEqual([pattern, []])
  }
})

test('B3: what does not apply has no value: only a tag may have an empty one', () => {
  expect(
    ALL.filter(
      ({ pattern, found }) =>
        pattern !== 'meta-data/tags/instance/{key}' &&
        found.some(({ value, earlier }) => value === '' || earlier?.value === ''),
    ),
  ).toEqual([])
})

test('A2: a version that changed the format of a value is later than the category, and shows one line', () => {
  const changed = ALL.flatMap(({ pattern, since, found }) =>
    found.flatMap(({ earlier }) => (earlier === undefined ? [] : [{ pattern, since, earlier }])),
  )
  expect(new Set(changed.map(({ pattern }) => pattern.split('/').at(-1)))).toEqual(new Set(['ipv6s', 'local-ipv4s']))
  for (const { since, earlier } of changed)
    expect([earlier.since > since, earlier.value.includes('\n')]).toEqual([true, false])
})

test('C3: without facts of the provider the tree has no services/', () => {
  const instance = parsed(aFullInstance())
  const lacking = CATEGORIES.filter(
    ({ entries }) =>
      entries({ instance, provider: PROVIDER }).length > 0 && entries({ instance, provider: {} }).length === 0,
  )
  expect(lacking.map(({ pattern }) => pattern)).toEqual(['meta-data/services/domain', 'meta-data/services/partition'])
})
