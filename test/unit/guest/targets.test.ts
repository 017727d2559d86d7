import { expect, test } from 'vitest'
import { Targets } from '../../../src/guest/targets.ts'
import { parseTarget } from '../../../src/metadata/target.ts'

const TEXTS = [
  '/',
  '/latest',
  '/latest//meta-data/',
  '/2009-04-04/meta-data/instance-id',
  '/latest/api/token',
  '/nonsense',
  `/latest/${'x'.repeat(300)}`,
  '/latest/%zz',
]

test('a cached target equals one that is parsed again', () => {
  const targets = new Targets()
  for (const text of [...TEXTS, ...TEXTS]) expect(targets.parse(text)).toEqual(parseTarget(text))
})

test('a target is parsed once, and again after the cache was cleared', () => {
  const targets = new Targets()
  const first = targets.parse('/latest/meta-data/')
  expect(targets.parse('/latest/meta-data/')).toBe(first)
  for (let i = 0; i < 1_024; i++) targets.parse(`/latest/${String(i)}`)
  expect(targets.parse('/latest/meta-data/')).not.toBe(first)
})
