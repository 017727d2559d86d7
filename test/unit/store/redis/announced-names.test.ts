import { expect, test } from 'vitest'
import { AnnouncedNames } from '../../../../src/store/redis/announced-names.ts'

test('an announcement is remembered for good, and that there is none for 10 s', () => {
  const names = new AnnouncedNames()
  expect(names.missingOf(['hv1', 'hv2'], 5_000)).toBeUndefined()
  names.learn(['hv1', 'hv2'], ['hv2'])
  expect(names.missingOf(['hv1', 'hv2'], 14_999)).toEqual(['hv2'])
  expect(names.missingOf(['hv1', 'hv3'], 14_999)).toBeUndefined()
  expect(names.missingOf(['hv1'], 15_000)).toEqual([])
  expect(names.missingOf(['hv1', 'hv2'], 15_000)).toBeUndefined()
})

test('a name that has an announcement at the next look is not missing any more', () => {
  const names = new AnnouncedNames()
  names.missingOf(['hv1'], 0)
  names.learn(['hv1'], ['hv1'])
  names.learn(['hv1'], [])
  expect(names.missingOf(['hv1'], 1)).toEqual([])
})
