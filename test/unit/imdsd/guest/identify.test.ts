import { expect, test } from 'vitest'
import { finderAt, peerAddress, type FoundGuest } from '../../../../src/imdsd/guest/identify.ts'

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
    const finder = finderAt(host, everything)
    expect([host, address, finder.find('default', address).kind, await finder.lookUp('default', address)]).toEqual([
      host,
      address,
      kind,
      kind === 'unknown' ? undefined : contested,
    ])
  }
  expect(asked).toEqual(['127.0.0.5', '::1', '10.0.0.2', '10.0.0.2'])
})
