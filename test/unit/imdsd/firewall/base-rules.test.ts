import { describe, expect, test } from 'vitest'
import { formatBaseRules, type BaseRulesParts } from '../../../../src/imdsd/firewall/base-rules.ts'

const V4 = { address: '169.254.169.254', port: 80 }
const V6 = { address: 'fd00:ec2::254', port: 80 }

const PARTS: BaseRulesParts = {
  listeners: [V4, V6],
  operatorPort: 9169,
  linkHead: 'tap-',
  hops: new Set(),
  limitedDscp: 0x0b,
}

/** The rules of one chain, without comments. */
function chain(name: string, change: Partial<BaseRulesParts> = {}): string[] {
  const text = formatBaseRules({ ...PARTS, ...change })
  const [, body = ''] = new RegExp(`\\n  chain ${name} \\{\\n([^]*?)\\n  \\}`).exec(text) ?? []
  return body
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '' && !line.startsWith('type filter'))
}

test('only packets to the addresses and ports of the listeners are checked, by address family', () => {
  expect(chain('prerouting')).toEqual([
    'ip daddr { 169.254.169.254 } ip frag-off & 0x3fff != 0 counter name fragments drop',
    'ip6 daddr { fd00:ec2::254 } exthdr frag exists counter name fragments drop',
    'ip daddr . tcp dport { 169.254.169.254 . 80 } goto asked4',
    'ip6 daddr . tcp dport { fd00:ec2::254 . 80 } goto asked6',
  ])
  expect(chain('output')).toEqual([
    'ip saddr . tcp sport { 169.254.169.254 . 80 } goto answer4',
    'ip6 saddr . tcp sport { fd00:ec2::254 . 80 } goto answer6',
  ])
})

test('a family without a listener has no rule, and without any listener no packet is checked', () => {
  expect(
    [...chain('prerouting', { listeners: [V4] }), ...chain('output', { listeners: [V4] })].filter((rule) =>
      rule.includes('ip6'),
    ),
  ).toEqual([])
  expect([chain('prerouting', { listeners: [] }), chain('output', { listeners: [] })]).toEqual([[], []])
})

test('an address or a port that several listeners share is in a set once: nft refuses duplicates', () => {
  const listeners = [V4, { ...V4, port: 8080 }, V4]
  expect(chain('prerouting', { listeners })).toEqual([
    'ip daddr { 169.254.169.254 } ip frag-off & 0x3fff != 0 counter name fragments drop',
    'ip daddr . tcp dport { 169.254.169.254 . 80, 169.254.169.254 . 8080 } goto asked4',
  ])
})

test('a connection is admitted only by link, MAC, address and listener together; others are refused', () => {
  expect(chain('asked4')).toEqual([
    'iifname . ether saddr . ip saddr . ip daddr . tcp dport @guests4 goto opening',
    'goto unknown_peer',
  ])
  expect(chain('asked6').at(-1)).toBe('goto unknown_peer')
  expect(chain('unknown_peer').at(-1)).toBe('drop')
})

test('a response leaves only by the link of its guest, except for a reset, which has no data', () => {
  expect([chain('answer4').at(-1), chain('answer6').at(-1)]).toEqual(['goto stray', 'goto stray'])
  expect(chain('stray')).toEqual(['tcp flags & rst == rst accept', 'counter name strays drop'])
})

describe('the operator listener', () => {
  const reset = 'tcp dport 9169 counter name operators reject with tcp reset'
  test('is closed to every link of guests, even if its interface is not known yet', () => {
    expect(chain('input')).toEqual([`iifname "tap-*" ${reset}`, `iifname @links ${reset}`])
  })
  test('is closed only to known links if link names have no common beginning', () => {
    const text = formatBaseRules({ ...PARTS, linkHead: undefined })
    expect(text).toContain(`iifname @links ${reset}`)
    expect(text).not.toContain('iifname "')
  })
  test('has no rule if there is no such listener', () => {
    expect(chain('input', { operatorPort: undefined })).toEqual([])
  })
})

test('E6: an accepted connection takes over the mark of its instance, and its answers must have it', () => {
  expect(chain('accepted')).toEqual([
    'ip daddr . tcp dport { 169.254.169.254 . 80 } meta mark set iifname . ether saddr map @marks',
    'ip6 daddr . tcp dport { fd00:ec2::254 . 80 } meta mark set iifname . ether saddr map @marks',
  ])
  expect(chain('answer4')).toEqual(['oifname . meta mark . ip saddr . ip daddr vmap @answers4', 'goto stray'])
  expect(chain('answer6').slice(1)).toEqual([
    'oifname . meta mark != @marked goto stray',
    'oifname . ip6 saddr . ip6 daddr vmap @ranges6',
    'goto stray',
  ])
})

test('D6: a chain of a hop limit sets it on packets with the DSCP only, for both families, and removes it', () => {
  expect(chain('hop_3', { hops: new Set([3]) })).toEqual([
    'meta mark set 0',
    'ip dscp 0x0b ip ttl set 3 ip dscp set cs0',
    'ip6 dscp 0x0b ip6 hoplimit set 3 ip6 dscp set cs0',
  ])
})
