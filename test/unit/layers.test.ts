import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { expect, test } from 'vitest'

const SRC = new URL('../../src', import.meta.url).pathname

/** Room -> the rooms that it may import from. The front rooms (top-level files) may use any. */
const MAY_IMPORT: Record<string, readonly string[]> = {
  metadata: [],
  store: ['metadata'],
  guest: ['metadata'],
  operator: [],
  edge: ['metadata'],
  cli: ['store', 'metadata', 'operator', 'edge'],
}

/** A fact about the package that belongs to no room. */
const ANYWHERE = join(SRC, 'version.ts')

function roomOf(file: string): string {
  return relative(SRC, file).includes('/') ? relative(SRC, file).split('/', 1)[0]! : 'top'
}

const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts')).map((name) => join(SRC, name))

test('rooms import only from the rooms that they may', () => {
  const forbidden = files.flatMap((file) => {
    const room = roomOf(file)
    if (room === 'top') return []
    const imports = [...readFileSync(file, 'utf8').matchAll(/from '(\.[^']+)'/g)].map(([, path]) => join(dirname(file), path!))
    return imports.filter((target) => target !== ANYWHERE && roomOf(target) !== room && !MAY_IMPORT[room]?.includes(roomOf(target)))
      .map((target) => `${relative(SRC, file)} imports ${relative(SRC, target)}`)
  })
  expect(files.length).toBeGreaterThan(20)
  expect(forbidden).toEqual([])
})

test('the environment is read by the entries of the two programs alone', () => {
  const readers = files.filter((file) => readFileSync(file, 'utf8').includes('process.env')).map((file) => relative(SRC, file))
  expect(readers.sort()).toEqual(['cli/imdsctl.ts', 'main.ts'])
})
