/**
 * B2, B3 and B6 over whole trees: every listed path has content, and no other path is listed, in every version and for
 * every state of an instance.
 */
import { expect, test } from 'vitest'
import { namedKeys, type Instance, type Interface } from '../../src/metadata/instance.ts'
import { buildTree, resolve } from '../../src/metadata/tree.ts'
import { pathsOf } from '../support/fixtures/tree-paths.ts'
import { parseTarget } from '../../src/metadata/target.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import { generateRecord } from '../support/fixtures/generated-records.ts'
import { aGuestServer, parsed } from '../support/fixtures/guest-server.ts'
import { aFullInstance } from '../support/fixtures/instance.ts'

const RECORDS = 80
const PROVIDERS = [{}, { domain: 'example.com' }, { domain: 'example.com', partition: 'x' }]

const signer = { sign: (document: string) => Promise.resolve({ signature: 'x', pkcs7: document }) }

/**
 * How cloud-init reads a line of a listing: the path below, and whether it is a directory (docs/clients.md#listings).
 */
function entry(directory: string, line: string): { path: string; isDirectory: boolean } {
  const index = /^(\d+)=/.exec(line)?.[1]
  if (index !== undefined) return { path: `${directory}${index}/`, isDirectory: true }
  const isOfRoot = directory === '' && (line === 'meta-data' || line === 'dynamic')
  return { path: directory + line + (isOfRoot ? '/' : ''), isDirectory: line.endsWith('/') || isOfRoot }
}

/**
 * Every path that can be reached by listings, with its body. Fails on a listed path without content, and on a line that
 * no client can read.
 */
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
    if (names.some((name) => name === '' || /[\s\r]/.test(name)))
      throw new Error(`an unreadable listing: ${path} ${JSON.stringify(body)}`)
    if (new Set(names.map((name) => name.replace(/\/$/, ''))).size < names.length)
      throw new Error(`a name is listed twice: ${path}`)
    for (const name of names) {
      const next = entry(path, name)
      visit(next.path, next.isDirectory)
    }
  }
  visit('', true)
  return found
}

/** The leaves that a record must have in `latest`, according to the contract and independent of the catalogue. */
function expectedLeaves(i: Instance, provider: { domain?: string; partition?: string }): string[] {
  const m = (names: string[]) => names.map((name) => `meta-data/${name}`)
  const [first] = i.interfaces
  const clouds = i.interfaces.flatMap(({ cloudIps }) => cloudIps)
  const isComplete = (nic: Interface) => nic.ipv4Addresses[0]?.includes('/') ?? true
  const tagKeys =
    i.options.instanceMetadataTags === 'enabled'
      ? Object.keys(i.tags).filter((key) => /^[\w+\-.,:@]+$/.test(key) && !['.', '..', '_index'].includes(key))
      : []
  return m([
    'ami-id',
    'ami-launch-index',
    'ami-manifest-path',
    'events/maintenance/history',
    'events/maintenance/scheduled',
    'hostname',
    'instance-action',
    'instance-id',
    'instance-life-cycle',
    'instance-type',
    'local-hostname',
    'mac',
    'placement/availability-zone',
    'placement/availability-zone-id',
    'placement/region',
    'profile',
    'reservation-id',
    ...Object.keys(i.blockDevices).map((name) => `block-device-mapping/${name}`),
    ...(first?.ipv4Addresses.length ? ['local-ipv4'] : []),
    ...(first?.ipv6Addresses.length ? ['ipv6'] : []),
    ...(clouds.length ? ['public-ipv4', 'public-hostname'] : []),
    ...(clouds[0]?.publicIpv6 === undefined ? [] : ['public-ipv6']),
    ...namedKeys(i).map((_, n) => `public-keys/${n}/openssh-key`),
    ...(i.serverGroups.length ? ['security-groups'] : []),
    ...(provider.domain ? ['services/domain'] : []),
    ...(provider.partition ? ['services/partition'] : []),
    ...tagKeys.map((key) => `tags/instance/${key}`),
    ...(!isComplete(first!)
      ? []
      : i.interfaces
          .filter(isComplete)
          .flatMap((nic) =>
            [
              'device-number',
              'interface-id',
              'local-hostname',
              'mac',
              'owner-id',
              'subnet-id',
              'vpc-id',
              ...(nic.ipv4Addresses.length ? ['local-ipv4s', 'subnet-ipv4-cidr-block'] : []),
              ...(i.serverGroups.length ? ['security-groups', 'security-group-ids'] : []),
              ...(nic.cloudIps.length
                ? [
                    'public-ipv4s',
                    'public-hostname',
                    ...(nic.ipv4Addresses.length
                      ? nic.cloudIps.map(({ publicIpv4 }) => `ipv4-associations/${publicIpv4}`)
                      : []),
                  ]
                : []),
              ...(nic.cloudIps.some(({ publicIpv6 }) => publicIpv6 !== undefined) ? ['public-ipv6s'] : []),
              ...(nic.ipv6Prefixes.length ? ['ipv6-prefix'] : []),
              ...(nic.dhcpv6 && nic.ipv6Addresses.length ? ['ipv6s'] : []),
              ...(nic.dhcpv6 && nic.ipv6Addresses.some((a) => a.includes('/')) ? ['subnet-ipv6-cidr-blocks'] : []),
            ].map((name) => `network/interfaces/macs/${nic.macAddress}/${name}`),
          )),
  ])
}

test(`B3: in ${RECORDS} generated records, exactly what is listed answers, in every version`, () => {
  let leaves = 0
  for (let seed = 1; seed <= RECORDS; seed++) {
    const isSealed = seed % 5 === 0
    const instance = parsed({ ...generateRecord(seed), ...(isSealed && { sealedAt: '2026-11-20T15:04:05Z' }) })
    const provider = PROVIDERS[seed % PROVIDERS.length]!
    const userData = seed % 3 === 0 ? Buffer.from([seed & 255]) : undefined
    const tree = buildTree(instance, userData, provider)
    let older = new Set<string>()
    for (const version of VERSIONS) {
      const found = crawl((path) => {
        const target = parseTarget(`/${version}/${path}`)
        return !target.ok ? undefined : resolve(tree, target.value.version, target.value.path)?.body.toString()
      })
      const paths = new Set(found.keys())
      // a later version has all that an earlier one has
      expect([...older].filter((path) => !paths.has(path))).toEqual([])
      older = paths
      leaves += paths.size
    }
    expect([seed, [...older].sort()]).toEqual([
      seed,
      [
        'dynamic/instance-identity/document',
        ...expectedLeaves(instance, provider),
        ...(userData === undefined || isSealed ? [] : ['user-data']),
      ].sort(),
    ])
  }
  expect(leaves).toBeGreaterThan(RECORDS * VERSIONS.length * 10)
})

const addressOf = ({ interfaces }: Instance) => interfaces[0]!.ipv4Addresses[0]!.split('/')[0]!

test('B3: every listed path answers over the server, and only a tag may be empty', async () => {
  for (let seed = 1; seed <= 40; seed++) {
    const hasIdentity = seed % 2 === 1
    const guest = aGuestServer({ provider: { ...PROVIDERS[seed % PROVIDERS.length]!, ...(hasIdentity && { signer }) } })
    const from = addressOf(guest.put(generateRecord(seed), seed % 2 === 0 ? Buffer.from('x') : undefined))
    const version = VERSIONS[seed % VERSIONS.length]!
    const seen: string[] = []
    const fetchAll = async (path: string, isDirectory: boolean): Promise<void> => {
      const { status, text } = await guest.ask({ url: `/${version}/${path}`, from })
      seen.push(path)
      expect([path, status]).toEqual([path, 200])
      if (isDirectory)
        for (const line of text.split('\n')) await fetchAll(entry(path, line).path, entry(path, line).isDirectory)
      else if (!path.startsWith('meta-data/tags/')) expect([path, text === '']).toEqual([path, false])
    }
    await fetchAll('', true)
    const leaves = seen.filter((path) => path.startsWith('dynamic/instance-identity/') && !path.endsWith('/'))
    expect([seed, leaves.length]).toEqual([seed, version < '2009-04-04' ? 0 : hasIdentity ? 4 : 1]) // H3
  }
})

test('B2: no value of the cloud ends in a newline, except an SSH key, which ends in exactly one', () => {
  const wrong: string[] = []
  for (let seed = 1; seed <= 40; seed++) {
    const tree = buildTree(parsed(seed === 1 ? aFullInstance() : generateRecord(seed)), undefined, PROVIDERS[2]!)
    for (const [position, version] of VERSIONS.entries()) {
      for (const [path, body] of crawl((at) => resolve(tree, position, at.replace(/\/$/, ''))?.body.toString())) {
        const isTag = path.startsWith('meta-data/tags/') // the owner of the instance chose its value
        if (!isTag && /\n*$/.exec(body)![0] !== (path.endsWith('/openssh-key') ? '\n' : ''))
          wrong.push(`/${version}/${path}`)
      }
    }
  }
  expect(wrong).toEqual([])
})

test('B6: once a guest gets its instance id, it gets its tree and its user-data; before that nothing', async () => {
  for (let seed = 1; seed <= 5; seed++) {
    const guest = aGuestServer()
    const { id, ...record } = generateRecord(seed)
    const instance = parsed({ id, ...record })
    const from = addressOf(instance)
    const paths = pathsOf(buildTree(instance, Buffer.from('x'), {}))
      .filter((path) => !path.startsWith('meta-data/public-keys/usr-'))
      .map((path) => `/latest/${path}`)
    const statuses = async () =>
      new Set(
        await Promise.all(
          ['/2009-04-04/meta-data/instance-id', '/2009-04-04/user-data', ...paths].map(
            async (url) => (await guest.ask({ url, from })).status,
          ),
        ),
      )
    expect([seed, await statuses()]).toEqual([seed, new Set([503])])
    guest.put({ id, ...record }, Buffer.from('x'))
    expect([seed, await statuses()]).toEqual([seed, new Set([200])])
    guest.put({ id, ...record, revision: 2 }, Buffer.from('y'.repeat(16_384)))
    expect([seed, await statuses(), (await guest.ask({ url: '/2009-04-04/user-data', from })).text.length]).toEqual([
      seed,
      new Set([200]),
      16_384,
    ])
    guest.view.remove(instance.id, 1)
    expect([seed, await statuses()]).toEqual([seed, new Set([503])])
  }
})
