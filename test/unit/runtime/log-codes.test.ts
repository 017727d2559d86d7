import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { LOG_CODES } from '../../../src/runtime/log-codes.ts'

const SRC = new URL('../../../src/', import.meta.url).pathname

test('each code is one of a line that is logged', () => {
  const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter(
    (name) => name.endsWith('.ts') && name !== 'runtime/log-codes.ts',
  )
  const source = files.map((name) => readFileSync(`${SRC}${name}`, 'utf8')).join()
  expect(LOG_CODES.filter((code) => !source.includes(`'${code}'`))).toEqual([])
})

test('a code is one or more words, and is listed once, in order', () => {
  expect(LOG_CODES.filter((code) => !/^[a-z]+(-[a-z]+)*$/.test(code))).toEqual([])
  expect([...new Set(LOG_CODES)].sort()).toEqual([...LOG_CODES])
})
