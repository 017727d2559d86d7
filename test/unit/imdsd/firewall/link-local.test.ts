import { expect, test } from 'vitest'
import { formatLinkLocalRules } from '../../../../src/imdsd/firewall/link-local.ts'

const RULES = formatLinkLocalRules(['fd00:ec2::1', 'fd00:ec2::2'], 'TOO-MANY')

test('E1: link and MAC address decide to which listener a packet goes, and by which link an answer leaves', () => {
  expect(RULES.chains).toContain(
    'ip6 saddr fe80::/64 ip6 daddr set iifname . ether saddr map @listeners_link goto opening_link\n    counter name unknown_peers drop\n',
  )
  expect(RULES.chains).toContain(
    'ip6 saddr set fe80::a9fe:a9fe\n    oifname vmap @answers_link\n    counter name strays drop\n',
  )
})

test('E1: fragments, and packets that are sent to a link-local listener itself, are dropped', () => {
  expect(RULES.prerouting).toEqual([
    'ip6 daddr { fe80::a9fe:a9fe, fd00:ec2::1, fd00:ec2::2 } exthdr frag exists counter name fragments drop',
    'ip6 daddr fe80::a9fe:a9fe tcp dport 80 goto asked_link',
    'ip6 daddr { fd00:ec2::1, fd00:ec2::2 } tcp dport 80 counter name unknown_peers drop',
  ])
})

test("F1: new connections beyond the rate are dropped: a reset could leave by another guest's link", () => {
  expect(RULES.chains).toContain('TOO-MANY counter name too_many drop\n')
  expect(RULES.chains).not.toContain('reject')
})
