import { expect, test } from 'vitest'
import { LATEST, VERSIONS, versionPosition, visibleFrom } from '../../../src/metadata/versions.ts'

test('A1: the versions are listed oldest first, each once, and `latest` is the last', () => {
  expect([...VERSIONS].sort()).toEqual(VERSIONS)
  expect(new Set(VERSIONS).size).toBe(VERSIONS.length)
  expect([VERSIONS[0], VERSIONS.at(-1), VERSIONS.indexOf('2022-07-09') > 0]).toEqual(['1.0', 'latest', true])
})

test('A1: each listed version has its position, and no other text has one', () => {
  expect(VERSIONS.map(versionPosition)).toEqual(VERSIONS.map((_version, position) => position))
  expect(versionPosition('latest')).toBe(LATEST)
  for (const text of ['', '2021-01-04', 'LATEST', 'latest ', '1', '1.00', 'constructor', '0'])
    expect([text, versionPosition(text) === undefined]).toEqual([text, true])
})

test('A2: a category is visible from the first version of its date or later, and at least in latest', () => {
  expect(
    ['1.0', '2007-01-19', '2007-01-20', '2024-04-11', '2024-04-12', '2099-01-01'].map(
      (since) => VERSIONS[visibleFrom(since)],
    ),
  ).toEqual(['1.0', '2007-01-19', '2007-03-01', '2024-04-11', 'latest', 'latest'])
})

test('the list of versions cannot be changed', () => {
  expect(() => {
    ;(VERSIONS as string[]).push('2099-01-01')
  }).toThrow(TypeError)
})
