/** Files of variables, as systemd reads them. test/imdsd/environment.test.ts compares the same table with systemd. */
import { expect, test } from 'vitest'
import { parseEnvironmentFile } from '../../../src/runtime/environment-file.ts'
import { ENVIRONMENT_FILES } from '../../support/fixtures/environment-files.ts'

test.each(Object.entries(ENVIRONMENT_FILES))('%s', (_what, { text, variables }) => {
  expect(parseEnvironmentFile(text).variables).toEqual(variables)
})

test('a name that no variable can have is reported', () => {
  expect(parseEnvironmentFile('export IMDS_REGION=gb1\nA-B=1\n').ignored).toEqual(['export IMDS_REGION', 'A-B'])
})

test('a large file is parsed in linear time: 1 MiB of white space, quotes or backslashes ends', () => {
  for (const text of [' ', '\n', '"', '\\', 'A=" ', "' '", '# \\'])
    parseEnvironmentFile(`A=${text.repeat(2 ** 20 / text.length)}`)
})
