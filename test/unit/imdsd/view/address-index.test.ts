import { Address6 } from 'ip-address'
import { expect, test } from 'vitest'
import { AddressIndex } from '../../../../src/imdsd/view/address-index.ts'
import { random } from '../../../support/fixtures/generated-records.ts'

const bounds = new Map<string, readonly [bigint, bigint]>() // parsing takes nearly all of this test's time

/** The first and the last address of a range, as numbers. */
function boundsOf(range: string): readonly [bigint, bigint] {
  const known = bounds.get(range)
  if (known !== undefined) return known
  const address = new Address6(range)
  const parsed = [address.startAddress().bigInt(), address.endAddress().bigInt()] as const
  bounds.set(range, parsed)
  return parsed
}

/** Who owns an address or a whole range, found by looking at every claim. */
function ownersOf(range: string, claims: readonly (readonly [string, string])[]): string[] {
  const [first, last] = boundsOf(range)
  const around = claims.filter(([claimed]) => {
    const [from, to] = boundsOf(claimed)
    return from <= first && last <= to
  })
  return [...new Set(around.map(([, claimant]) => claimant))].sort()
}

test('invariant 7: the owner of an address is what a check of every claim finds', () => {
  for (let seed = 1; seed <= 60; seed++) {
    const next = random(seed)
    const pick = <T>(list: readonly T[]): T => list[Math.floor(next() * list.length)]!
    /** Few digits differ, so that ranges overlap often. */
    const anAddress = () =>
      new Address6(
        `2a02:1348:178:${pick(['1', '10', '11', '2'])}:${pick(['', '', '0:', 'f:'])}:${pick(['1', '10', 'ffff', 'a:b'])}`,
      ).correctForm()
    const aRange = () => {
      if (next() < 0.4) return anAddress()
      const length = pick([48, 52, 56, 60, 64, 64, 80, 112, 124])
      return `${new Address6(`${anAddress()}/${length}`).startAddress().correctForm()}/${length}`
    }
    const settled = new Map<string, readonly string[]>()
    const index = new AddressIndex(false, (range, owners) => {
      if (owners.length === 0) settled.delete(range)
      else settled.set(range, owners)
    })
    let claims: (readonly [string, string])[] = []
    for (let step = 0; step < 60; step++) {
      if (claims.length > 0 && next() < 0.4) {
        const gone = pick(claims)
        claims = claims.filter((claim) => claim !== gone)
        index.unclaim(...gone)
      } else {
        const claim = [aRange(), pick(['a', 'b', 'c'])] as const
        if (claims.some(([range, claimant]) => range === claim[0] && claimant === claim[1])) continue
        claims = [...claims, claim]
        index.claim(...claim)
      }
      for (let i = 0; i < 5; i++) {
        const address = anAddress()
        const owners = ownersOf(address, claims)
        expect([address, index.find(address)]).toEqual([
          address,
          owners.length > 1
            ? { kind: 'contested' }
            : owners.length === 1
              ? { kind: 'owned', owner: owners[0] }
              : { kind: 'unknown' },
        ])
      }
    }
    expect(Object.fromEntries([...settled].map(([range, owners]) => [range, [...owners].sort()]))).toEqual(
      Object.fromEntries(claims.map(([range]) => [range, ownersOf(range, claims)])),
    )
    for (const claim of claims) index.unclaim(...claim)
    expect(settled.size).toBe(0)
    expect(index.find(anAddress())).toEqual({ kind: 'unknown' })
  }
})

test('an IPv4 address never matches an IPv6 address or prefix', () => {
  const index = new AddressIndex(false, () => undefined)
  index.claim('fd00::/64', 'a')
  expect(index.find('10.0.0.2')).toEqual({ kind: 'unknown' })
  index.claim('10.0.0.2', 'b')
  expect(index.find('10.0.0.2')).toEqual({ kind: 'owned', owner: 'b' })
})

test('E5: what an owner gains is unconfirmed, by its own claim, or because another one has left', () => {
  const index = new AddressIndex(true, () => undefined)
  const kinds = (...addresses: readonly string[]) => addresses.map((address) => index.find(address).kind)
  index.claim('10.0.0.2', 'a')
  expect(kinds('10.0.0.2')).toEqual(['unconfirmed'])
  index.setConfirmed('10.0.0.2', true)
  expect(kinds('10.0.0.2')).toEqual(['owned'])
  index.claim('10.0.0.2', 'b')
  index.setConfirmed('10.0.0.2', true)
  expect(kinds('10.0.0.2')).toEqual(['contested'])
  index.unclaim('10.0.0.2', 'b')
  expect(kinds('10.0.0.2')).toEqual(['unconfirmed'])
})

test('E5: an address in a confirmed prefix of its owner is confirmed; one that another one had is not', () => {
  const index = new AddressIndex(true, () => undefined)
  const kinds = (...addresses: readonly string[]) => addresses.map((address) => index.find(address).kind)
  index.claim('fd00::/64', 'a')
  index.claim('fd00::1', 'a')
  expect(kinds('fd00::1', 'fd00::2')).toEqual(['unconfirmed', 'unconfirmed'])
  index.setConfirmed('fd00::/64', true)
  index.setConfirmed('fd00::1', true)
  index.claim('fd00::2', 'a')
  expect(kinds('fd00::1', 'fd00::2', 'fd00::3')).toEqual(['owned', 'owned', 'owned'])
  index.unclaim('fd00::2', 'a')
  expect(kinds('fd00::2')).toEqual(['owned'])
  index.claim('fd00::3', 'b')
  expect(kinds('fd00::2', 'fd00::3')).toEqual(['owned', 'contested'])
  index.unclaim('fd00::3', 'b')
  expect(kinds('fd00::1', 'fd00::2', 'fd00::3')).toEqual(['owned', 'unconfirmed', 'unconfirmed'])
})
