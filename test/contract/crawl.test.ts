/**
 * B3: every listed path has content, and no other path is listed, in every version and for every state of an instance.
 */
import { expect, test } from 'vitest'
import type { Instance } from '../../src/metadata/instance.ts'
import { buildTree, resolve } from '../../src/metadata/tree.ts'
import { parseTarget } from '../../src/metadata/target.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import { generateRecord } from '../support/fixtures/generated-records.ts'
import { aGuestServer, parsed } from '../support/fixtures/guest-server.ts'

const RECORDS = 400
const PROVIDERS = [{}, { domain: 'example.com' }, { domain: 'example.com', partition: 'x' }]

/** How cloud-init reads a line of a listing: the path below, and whether it is a directory (docs/clients.md#listings). */
function entry(directory: string, line: string): { path: string, isDirectory: boolean } {
  const index = /^(\d+)=/.exec(line)?.[1]
  if (index !== undefined) return { path: `${directory}${index}/`, isDirectory: true }
  const isRoot = directory === ''
  return { path: directory + line + (isRoot && line === 'meta-data' ? '/' : ''), isDirectory: line.endsWith('/') || (isRoot && line === 'meta-data') }
}

/** Every path that can be reached by listings, with its body. Fails on a listed path without content, and on a line that no client can read. */
function crawl(get: (path: string) => string | undefined): Map<string, string> {
  const found = new Map<string, string>()
  const visit = (path: string, isDirectory: boolean) => {
    const body = get(path)
    if (body === undefined) throw new Error(`listed but not answered: ${path}`)
    if (!isDirectory) {
      found.set(path, body)
      return
    }
    const names = body.split('\n')
    if (names.some((name) => name === '' || /[\s\r]/.test(name))) throw new Error(`an unreadable listing: ${path} ${JSON.stringify(body)}`)
    if (new Set(names.map((name) => name.replace(/\/$/, ''))).size < names.length) throw new Error(`a name is listed twice: ${path}`)
    for (const name of names) {
      const next = entry(path, name)
      visit(next.path, next.isDirectory)
    }
  }
  visit('', true)
  return found
}

/** The leaves that a record must have in `latest`, according to the contract and independent of the catalogue. */
function expectedLeaves(i: Instance, provider: { domain?: string, partition?: string }): string[] {
  const m = (names: string[]) => names.map((name) => `meta-data/${name}`)
  const [first] = i.interfaces
  const clouds = i.interfaces.flatMap(({ cloudIps }) => cloudIps)
  const hasNetwork = i.interfaces.every((nic) => nic.ipv4Addresses[0]?.includes('/'))
  const tagKeys = i.options.instanceMetadataTags === 'enabled' ? Object.keys(i.tags).filter((key) => /^[\w+\-.,:@]+$/.test(key) && !['.', '..', '_index'].includes(key)) : []
  return m([
    'ami-id', 'ami-launch-index', 'ami-manifest-path', 'events/maintenance/history', 'events/maintenance/scheduled', 'hostname', 'instance-action', 'instance-id',
    'instance-life-cycle', 'instance-type', 'local-hostname', 'mac', 'placement/availability-zone', 'placement/availability-zone-id', 'placement/region', 'profile', 'reservation-id',
    ...Object.keys(i.blockDevices).map((name) => `block-device-mapping/${name}`),
    ...first?.ipv4Addresses.length ? ['local-ipv4'] : [],
    ...first?.ipv6Addresses.length ? ['ipv6'] : [],
    ...clouds.length ? ['public-ipv4', 'public-hostname'] : [],
    ...i.publicKeys.map((_, n) => `public-keys/${String(n)}/openssh-key`),
    ...i.serverGroups.length ? ['security-groups'] : [],
    ...provider.domain ? ['services/domain'] : [],
    ...provider.partition ? ['services/partition'] : [],
    ...tagKeys.map((key) => `tags/instance/${key}`),
    ...!hasNetwork ? [] : i.interfaces.flatMap((nic) => [
      'device-number', 'interface-id', 'local-hostname', 'local-ipv4s', 'mac', 'owner-id', 'subnet-id', 'subnet-ipv4-cidr-block', 'vpc-id',
      ...i.serverGroups.length ? ['security-groups', 'security-group-ids'] : [],
      ...nic.cloudIps.length ? ['public-ipv4s', 'public-hostname', ...nic.cloudIps.map(({ publicIpv4 }) => `ipv4-associations/${publicIpv4}`)] : [],
      ...nic.dhcpv6 && nic.ipv6Addresses.length ? ['ipv6s'] : [],
      ...nic.dhcpv6 && nic.ipv6Addresses.some((a) => a.includes('/')) ? ['subnet-ipv6-cidr-blocks'] : [],
    ].map((name) => `network/interfaces/macs/${nic.macAddress}/${name}`)),
  ])
}

test(`B3: in ${String(RECORDS)} generated records, exactly what is listed answers, in every version`, () => {
  let leaves = 0
  for (let seed = 1; seed <= RECORDS; seed++) {
    const isSealed = seed % 5 === 0
    const instance = parsed({ ...generateRecord(seed), ...isSealed && { sealedAt: '2026-11-20T15:04:05Z' } })
    const provider = PROVIDERS[seed % PROVIDERS.length]!
    const userData = seed % 3 === 0 ? Buffer.from([seed & 255]) : null
    const tree = buildTree(instance, userData, provider)
    let older = new Set<string>()
    for (const version of VERSIONS) {
      const found = crawl((path) => {
        const target = parseTarget(`/${version}/${path}`)
        return !target.ok ? undefined : resolve(tree, target.value.version, target.value.path)?.body.toString()
      })
      const paths = new Set(found.keys())
      expect([...older].filter((path) => !paths.has(path))).toEqual([]) // a later version has all that an earlier one has
      older = paths
      leaves += paths.size
    }
    expect([seed, [...older].sort()]).toEqual([seed, [...expectedLeaves(instance, provider), ...userData === null || isSealed ? [] : ['user-data']].sort()])
  }
  expect(leaves).toBeGreaterThan(RECORDS * VERSIONS.length * 10)
})

test('B3: every listed path answers over the server, and bodies are not empty and end as specified', async () => {
  for (let seed = 1; seed <= 40; seed++) {
    const guest = aGuestServer({ provider: PROVIDERS[seed % PROVIDERS.length]! })
    const instance = guest.put(generateRecord(seed), seed % 2 === 0 ? Buffer.from('x') : null)
    const from = instance.interfaces[0]!.ipv4Addresses[0]!.split('/')[0]!
    const version = VERSIONS[seed % VERSIONS.length]!
    const bodies = new Map<string, string>()
    const fetchAll = async (path: string, isDirectory: boolean): Promise<void> => {
      const { status, text } = await guest.ask({ url: `/${version}/${path}`, from })
      expect([path, status]).toEqual([path, 200])
      if (!isDirectory) bodies.set(path, text)
      else for (const line of text.split('\n')) await fetchAll(entry(path, line).path, entry(path, line).isDirectory)
    }
    await fetchAll('', true)
    for (const [path, body] of bodies) {
      if (path.startsWith('meta-data/tags/')) continue
      expect([path, body === '']).toEqual([path, false])
      expect([path, body.endsWith('\n')]).toEqual([path, path.endsWith('/openssh-key')])
    }
  }
})
