import { globSync } from 'node:fs'
import { expect, test } from 'vitest'

const ROOT = new URL('../../', import.meta.url).pathname
/** Tests of the repository, not of a source file. */
const OF_THE_REPOSITORY = ['docs', 'layers', 'mirror']

test('a unit test has the path of its source file; -fuzz is its variant with random input', () => {
  const sources = new Set(globSync('**/*.ts', { cwd: `${ROOT}src` }))
  const tested = globSync('**/*.test.ts', { cwd: `${ROOT}test/unit` }).map((file) =>
    file.replace(/(-fuzz)?\.test\.ts$/, ''),
  )
  expect(tested.filter((file) => !sources.has(`${file}.ts`))).toEqual(OF_THE_REPOSITORY)
})
