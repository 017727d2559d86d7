/**
 * The guests of a fuzzed host. Each has its own address, and its canary is in most fields of its record and in no other
 * record, so that a leak of data is recognised. Some guests are not served, or only with a session token.
 */
import { parse } from '../../src/metadata/record.ts'
import { parseTarget } from '../../src/metadata/target.ts'
import { buildTree, resolve, VERSION_LIST } from '../../src/metadata/tree.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import type { Publisher } from '../../src/store/open.ts'
import { fillUserData } from '../../src/store/user-data.ts'
import { aFullInstance } from '../support/fixtures/instance.ts'
import { pathsOf } from '../support/fixtures/tree-paths.ts'
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
  /** True for the first guest: the session token in the inputs belongs to it. */
  readonly ownsToken: boolean
  /**
   * The body of a target in the guest's tree: undefined if the path does not exist, null if the target is malformed.
   */
  bodyOf(target: string): string | undefined | null
  /** True if any path of the guest's tree has this body. */
  hasBody(body: string): boolean
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
    guests.push({ address, role, canary, ownsToken: i === 0, ...treeOf(record, userData) })
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

function treeOf(record: Record<string, unknown>, userData: Buffer): Pick<FuzzGuest, 'bodyOf' | 'hasBody'> {
  const latin1 = (body: string | Uint8Array) => (typeof body === 'string' ? body : Buffer.from(body).toString('latin1'))
  const parsed = parse(fillUserData(record, userData, sha256(userData)))
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  const tree = buildTree(parsed.value, userData, {})
  let bodies: Set<string> | undefined
  return {
    bodyOf: (target) => {
      const { ok, ...of } = parseTarget(target)
      if (!ok || !('value' in of)) return null
      if (of.value.route === 'unknown') return undefined
      const { route, version, path } = of.value
      const content = route === '/' ? VERSION_LIST : resolve(tree, version, path)
      return content && latin1(content.body)
    },
    hasBody: (body) => {
      const contents = () =>
        pathsOf(tree).flatMap((path) => VERSIONS.map((_version, position) => resolve(tree, position, path)))
      bodies ??= new Set([VERSION_LIST, ...contents()].flatMap((content) => (content ? [latin1(content.body)] : [])))
      return bodies.has(body)
    },
  }
}
