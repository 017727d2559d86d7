import { expect, test } from 'vitest'
import { isLinkRule, linkHead, linksOf } from '../../../../src/imdsd/firewall/link.ts'

const one = { id: 'int-ds42k', network: 'red' }
const linkOf = (rule: string, of = one) => linksOf(rule, [of])(of)

test("a link rule names a guest's link", () => {
  expect(linkOf('tap-{interfaceId}')).toEqual({ ok: true, value: 'tap-int-ds42k' })
  expect(linkOf('br-{network}')).toEqual({ ok: true, value: 'br-red' })
  expect(linkOf('br0')).toEqual({ ok: true, value: 'br0' })
})

test('a rule may take the first characters of an id, as OpenStack does', () => {
  const port = { id: '1f9a7c3e-52d4-4b8e-9c1a-0d6f2e8b7a90', network: 'red' }
  expect(linkOf('tap{interfaceId:11}', port)).toEqual({ ok: true, value: 'tap1f9a7c3e-52' })
  expect(linkOf('{network:2}-{interfaceId:3}', port)).toEqual({ ok: true, value: 're-1f9' })
  expect(linkOf('tap{interfaceId:11}')).toEqual({ ok: true, value: 'tapint-ds42k' })
  expect(linkOf('t.{interfaceId:99}', { ...port, id: 'A' })).toEqual({ ok: true, value: 't.A' })
})

test('a name that is too long for Linux is a fault and is never cut', () => {
  expect(linkOf('tap-{interfaceId}', { ...one, id: 'int-abcdefg' })).toEqual({ ok: true, value: 'tap-int-abcdefg' })
  expect(linkOf('tap-{interfaceId}', { ...one, id: 'int-abcdefgh' })).toEqual({
    ok: false,
    faults: [
      'its link name by the rule tap-{interfaceId} has 16 characters, and Linux allows 15; {interfaceId:11} takes the first 11 of an id',
    ],
  })
})

test('interfaces that would share a link get none, and the others keep theirs', () => {
  const [a, b, c] = ['port-tenant-1', 'port-tenant-2', 'port-other'].map((id) => ({ id, network: 'red' }))
  const links = linksOf('tap{interfaceId:11}', [a!, b!, c!])
  const message =
    'the rule tap{interfaceId:11} gives it the link name tapport-tenant, which interfaces port-tenant-1 and port-tenant-2 would share'
  expect([links(a!), links(b!), links(c!)]).toEqual([
    { ok: false, faults: [message] },
    { ok: false, faults: [message] },
    { ok: true, value: 'tapport-other' },
  ])
  expect(linksOf('{interfaceId}', [a!, { ...a!, network: 'blue' }])(a!)).toEqual({
    ok: false,
    faults: [
      'the rule {interfaceId} gives it the link name port-tenant-1, which 2 interfaces with the id port-tenant-1 would share',
    ],
  })
  expect(linksOf('{network}-{interfaceId:4}', [a!, { ...a!, network: 'blue' }])(a!)).toEqual({
    ok: true,
    value: 'red-port',
  })
  for (const bridge of ['br0', 'br-{network}']) expect(linksOf(bridge, [a!, b!])(a!)).toMatchObject({ ok: true })
})

test('an invalid link rule is reported', () => {
  for (const rule of [
    'tap-{interfaceId}',
    '{interfaceId}',
    'tap{interfaceId:11}',
    '{interfaceId:99}',
    'br-{network}',
    'br0',
    'a.b_c-1',
  ])
    expect([rule, isLinkRule(rule)]).toEqual([rule, true])
  for (const rule of [
    '',
    '.',
    '..',
    'tap*',
    'tap {interfaceId}',
    'tap"',
    'a/b',
    '{mac}',
    'fifteencharacte{interfaceId}',
    '{interfaceId:0}',
    '{interfaceId:100}',
    '{interfaceId:}',
    '{interfaceId:-1}',
    'tap-\n',
  ])
    expect([rule, isLinkRule(rule)]).toEqual([rule, false])
})

test('the common prefix of all links is known if the rule has one, and is never a single character', () => {
  for (const [rule, head] of [
    ['tap-{interfaceId}', 'tap-'],
    ['tap{interfaceId:11}', 'tap'],
    ['t-{interfaceId}', 't-'],
    ['ab{interfaceId}{network}', 'ab'],
  ] as const)
    expect(linkHead(rule)).toBe(head)
  for (const rule of ['br0', 'br-{network}', '{network}-{interfaceId}', '{interfaceId}', 'e{interfaceId}'])
    expect(linkHead(rule)).toBeUndefined()
})
