import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { keysOf } from '../../../../src/store/redis/keys.ts'

const KEYS = keysOf('gb1')
const names = (of: typeof KEYS, name: string) =>
  Object.values(of).map((key: string | ((name: string, id: string) => string)) =>
    typeof key === 'string' ? key : key(name, name),
  )

test('every key and channel of a region has its hash tag, so that one shard holds all of them', () => {
  for (const name of names(KEYS, 'x')) expect(name).toMatch(/^imds:\{gb1\}(:|$)/)
})

test('no two keys have the same name, whatever the ids', () => {
  const all = ['a', 'b', 'instances', 'hypervisors', 'default'].flatMap((name) => names(KEYS, name))
  const fixed = Object.values(KEYS).filter((key: unknown) => typeof key === 'string').length
  expect(new Set(all).size).toBe(all.length - 4 * fixed)
})

test('regions share no key', () => {
  const other = new Set(names(keysOf('gb2'), 'x'))
  expect(names(KEYS, 'x').filter((name) => other.has(name))).toEqual([])
})

test('publish.lua builds the same names', () => {
  const script = readFileSync(new URL('../../../../src/store/redis/publish.lua', import.meta.url), 'utf8')
  const parts = new Set(
    names(KEYS, '')
      .map((name) => name.slice('imds:{gb1}'.length).replace('::', ':'))
      .filter(
        (part) =>
          part !== '' && ![':announcement:', ':database', ':complete', ':numbers', ':drained', ':api'].includes(part),
      ),
  ) // daemons, imdsctl and imds-api write these
  expect([...parts].filter((part) => !script.includes(`'${part}'`))).toEqual([])
})
