import { expect, test } from 'vitest'
import { formatScopes, grantScopes, narrowScopes, SCOPES } from '../../../../src/imds-api/model/scopes.ts'

test.each<[string | undefined, readonly ('infrastructure' | 'orbit')[], readonly string[] | undefined]>([
  [undefined, SCOPES, SCOPES],
  ['', SCOPES, SCOPES],
  [' , ', ['orbit'], ['orbit']],
  ['infrastructure', SCOPES, ['infrastructure']],
  ['orbit infrastructure', SCOPES, SCOPES],
  ['orbit,infrastructure', SCOPES, SCOPES],
  ['orbit, infrastructure', ['orbit'], ['orbit']],
  ['infrastructure', ['orbit'], undefined],
  ['admin', SCOPES, undefined],
  ['orbit admin', SCOPES, undefined],
  ['Orbit', SCOPES, undefined],
])('%j of %j gives %j', (requested, allowed, granted) => expect(grantScopes(requested, allowed)).toEqual(granted))

test('scopes are separated by a comma and a space', () => expect(formatScopes(SCOPES)).toBe('infrastructure, orbit'))

test.each<[string | undefined, readonly string[], readonly string[] | undefined]>([
  [undefined, SCOPES, SCOPES],
  ['', ['orbit'], ['orbit']],
  ['orbit', SCOPES, ['orbit']],
  ['orbit, infrastructure', SCOPES, SCOPES],
  ['infrastructure', ['orbit'], undefined],
  ['orbit infrastructure', ['orbit'], undefined],
  ['admin', SCOPES, undefined],
])('a refresh for %j of a token with %j gets %j', (requested, granted, scopes) => {
  expect(narrowScopes(requested, granted)).toEqual(scopes)
})
