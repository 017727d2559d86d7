import { expect, test } from 'vitest'
import { isLinkRule, linkHead, linkOf } from '../../../src/edge/link.ts'

const one = { id: 'int-ds42k', network: 'red' }

test('a rule names a guest\'s link', () => {
  expect(linkOf('tap-{interfaceId}', one)).toEqual({ ok: true, link: 'tap-int-ds42k' })
  expect(linkOf('br-{network}', one)).toEqual({ ok: true, link: 'br-red' })
  expect(linkOf('br0', one)).toEqual({ ok: true, link: 'br0' })
})

test('a name that is too long for Linux is a fault and is never cut', () => {
  expect(linkOf('tap-{interfaceId}', { ...one, id: 'int-abcdefg' })).toEqual({ ok: true, link: 'tap-int-abcdefg' })
  expect(linkOf('tap-{interfaceId}', { ...one, id: 'int-abcdefgh' })).toEqual({ ok: false, message: 'its link by the rule tap-{interfaceId} has 16 characters, and Linux allows 15' })
})

test('what is no rule is told', () => {
  for (const rule of ['tap-{interfaceId}', '{interfaceId}', 'br-{network}', 'br0', 'a.b_c-1']) expect([rule, isLinkRule(rule)]).toEqual([rule, true])
  for (const rule of ['', '.', '..', 'tap*', 'tap {interfaceId}', 'tap"', 'a/b', '{mac}', 'elevenchars-{interfaceId}', 'tap-\n']) expect([rule, isLinkRule(rule)]).toEqual([rule, false])
})

test('what all links of guests begin with is known where an interface\'s id says it, and only then', () => {
  expect(linkHead('tap-{interfaceId}')).toBe('tap-int-')
  expect(linkHead('{interfaceId}')).toBe('int-')
  for (const rule of ['br0', 'br-{network}', '{network}-{interfaceId}']) expect(linkHead(rule)).toBeUndefined()
})
