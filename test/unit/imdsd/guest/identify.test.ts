import type { Socket } from 'node:net'
import { expect, test } from 'vitest'
import {
  peerAddress,
  peersByAddress,
  peersByLink,
  refusalOf,
  type FoundGuest,
  type Guest,
} from '../../../../src/imdsd/guest/identify.ts'

test.each([
  ['10.0.0.2', '10.0.0.2'],
  ['::ffff:10.0.0.2', '10.0.0.2'],
  ['fd00::2', 'fd00::2'],
  ['fe80::1%eth0', 'fe80::1'],
  ['::ffff:a00:2', '::ffff:a00:2'],
  ['64:ff9b::10.0.0.2', '64:ff9b::10.0.0.2'],
  ['', ''],
  [undefined, ''],
])('invariant 1: a peer at %s has the address "%s"', (remoteAddress, address) => {
  expect(peerAddress({ remoteAddress })).toBe(address)
})

test('E1: a loopback address identifies no guest, unless the listener is on one; nothing is asked about it', async () => {
  const asked: string[] = []
  const contested: FoundGuest = { kind: 'contested' }
  const lookUp = (_network: string, address: string) => {
    asked.push(address)
    return Promise.resolve(contested)
  }
  const everything = { find: () => contested, lookUp }
  for (const [host, address, kind] of [
    ['127.0.0.1', '127.0.0.5', 'contested'],
    ['::1', '::1', 'contested'],
    ['169.254.169.254', '127.0.0.5', 'unknown'],
    ['0.0.0.0', '127.0.0.5', 'unknown'],
    ['::', '::1', 'unknown'],
    [undefined, '127.0.0.5', 'unknown'],
    ['169.254.169.254', '10.0.0.2', 'contested'],
    ['127.0.0.1', '10.0.0.2', 'contested'],
  ] as const) {
    const peers = peersByAddress(host, everything)
    expect([
      host,
      address,
      peers.find('default', address).kind,
      (await peers.lookUp('default', address))?.kind,
    ]).toEqual([host, address, kind, kind === 'unknown' ? undefined : kind])
  }
  expect(asked).toEqual(['127.0.0.5', '::1', '10.0.0.2', '10.0.0.2'])
})

test('E1: at a link-local listener the link of a peer names the guest, whatever its address is', () => {
  const contested: FoundGuest = { kind: 'contested' }
  const asked: string[] = []
  const peers = peersByLink({
    findByLink: (network, link) => {
      asked.push(`${network} ${link}`)
      return contested
    },
  })
  const found = (remoteAddress: string | undefined) => {
    const address = peers.addressOf({ remoteAddress })
    return [address, peers.find('red', address).kind, peers.lookUp('red', address)]
  }
  for (const address of ['fe80::1%tap-a', 'fe80::ff:fe00:1%tap-a']) {
    expect(found(address)).toEqual([address, 'contested', undefined])
    expect(refusalOf(contested, address)).toBe('contested-address')
  }
  for (const address of ['fd00::1', '::1', '10.0.0.2', '::ffff:10.0.0.2']) expect(found(address)[1]).toBe('unknown')
  expect(found(undefined)).toEqual(['', 'unknown', undefined])
  expect(asked).toEqual(['red tap-a', 'red tap-a'])
})

test('E3: a connection by link keeps its first owner: when the link has another one, it is not answered', () => {
  const peers = peersByLink({ findByLink: () => ({ kind: 'unknown' }) })
  const of = (stay: Guest['stay']): FoundGuest => ({ kind: 'owned', owner: { stay } as Guest })
  const [former, later] = [of({ sinceMs: 0 }), of({ sinceMs: 0 })]
  const [connection, other] = [{}, {}] as [Pick<Socket, 'remoteAddress'>, Pick<Socket, 'remoteAddress'>]
  expect(peers.bind(connection, { kind: 'unknown' })).toBe(true)
  expect(peers.bind(connection, former)).toBe(true)
  expect(peers.bind(connection, { kind: 'contested' })).toBe(true)
  expect([peers.bind(connection, later), peers.bind(other, later)]).toEqual([false, true])
  expect(peers.bind(connection, former)).toBe(true)
  const byAddress = peersByAddress('10.0.0.1', { find: () => former, lookUp: () => undefined })
  expect([byAddress.bind(connection, former), byAddress.bind(connection, later)]).toEqual([true, true])
})
