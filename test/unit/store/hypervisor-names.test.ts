import { expect, test } from 'vitest'
import { hypervisorNames } from '../../../src/store/hypervisor-names.ts'

test('the names in records are given once, in order, and up to five; whatever is no name is left out', () => {
  expect(hypervisorNames([['hv2', 'hv1'], ['hv2']])).toEqual(['hv1', 'hv2'])
  expect(
    hypervisorNames([
      ['f', 'e', 'd'],
      ['c', 'b', 'a'],
    ]),
  ).toEqual(['a', 'b', 'c', 'd', 'e'])
  expect(
    hypervisorNames([undefined, null, {}, 7, 'hv3', ['a\u001b[31m', 5, ['nested'], '', 'x'.repeat(1000)]]),
  ).toEqual(['hv3'])
  expect([hypervisorNames([]), hypervisorNames([['a b']])]).toEqual([undefined, undefined])
})
