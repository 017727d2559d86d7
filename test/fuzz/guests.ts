/**
 * The guests of a fuzzed host. Each has its own address, and its canary is in most fields of its record and in no other
 * record, so that a leak of data is recognised. Some guests are not served, or only with a session token.
 */
import type { Publisher } from '../../src/store/open.ts'
import { aFullInstance } from '../support/fixtures/instance.ts'
import { diceOf } from './dice.ts'

/** CANARY and 8 lower-case letters or digits: with capital letters too, a random session token would match sometimes. */
const CANARIES = /cnry[0-9a-z]{8}/g

/**
 * The state of an address. `required`: its instance requires session tokens. `disabled`: its httpEndpoint is disabled.
 */
export type Role = 'known' | 'required' | 'disabled' | 'unknown'

/** One address from which requests are sent. */
export interface FuzzGuest {
  readonly address: string
  readonly role: Role
  readonly canary: string
}

const ROLES: readonly Role[] = [
  ...Array.from({ length: 12 }, () => 'known' as const),
  'required',
  'unknown',
  'disabled',
]

/** Publishes the records of `count` addresses into a store. Returns the guests. */
export async function populate(store: Publisher, count: number): Promise<FuzzGuest[]> {
  const guests: FuzzGuest[] = []
  for (let i = 0; i < count; i++) {
    const role = ROLES[i % ROLES.length]!
    const address = `127.1.${i >> 8}.${i & 255}`
    const dice = diceOf(0xca4a47, i)
    const canary = `cnry${Array.from({ length: 8 }, () => dice.below(36).toString(36)).join('')}`
    const userData = Buffer.from(
      `#!/bin/sh\n\0\xff\r\n\r\nHTTP/1.1 200 OK\r\n${canary} `.repeat(1 + (i % 50)),
      'latin1',
    )
    const record = recordOf(i, canary, address, role)
    if (role !== 'unknown') await store.put(record, userData)
    guests.push({ address, role, canary })
  }
  return guests
}

/** Canaries in a text that are not a guest's own. */
export function foreignCanaries(text: string, own: string): string[] {
  return [...text.matchAll(CANARIES)].map(([canary]) => canary).filter((canary) => canary !== own)
}

function recordOf(i: number, canary: string, address: string, role: Role): Record<string, unknown> {
  const [nic, second] = aFullInstance()['interfaces'] as [object, object]
  const cloudIps = [{ id: `cip-${canary}`, publicIpv4: '198.51.100.7', fqdn: `${canary}.example.com` }]
  const own = { id: `int-${canary}`, ipv4Addresses: [`${address}/8`], ipv6Addresses: [], ipv6Prefixes: [], cloudIps }
  return aFullInstance({
    id: `srv-f${i}`,
    fqdn: `${canary}.gb1.example.com`,
    account: `acc-${canary}`,
    serverType: { id: `typ-${canary}`, handle: canary },
    image: `img-${canary}`,
    interfaces: [
      { ...nic, ...own },
      { ...second, ipv4Addresses: [`10.1.${i >> 8}.${i & 255}/24`] },
    ],
    serverGroups: [{ id: `grp-${canary}`, name: `group ${canary}` }],
    publicKeys: [{ user: `usr-${canary}`, key: `ssh-ed25519 AAAA${canary} ${canary}` }],
    tags: { Name: canary, [`key-${canary}`]: canary, 'a:b@c': `é ${canary}`, empty: '' },
    options: {
      instanceMetadataTags: 'enabled',
      ...(role === 'disabled' && { httpEndpoint: 'disabled' }),
      ...(role === 'required' && { httpTokens: 'required' }),
    },
  })
}
