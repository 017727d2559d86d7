/**
 * The catalogue of categories: the content of `meta-data/`, and the version from which each is visible (contract C;
 * docs/contract.md#notes-on-ec2).
 *
 * A row is a path pattern, EC2's date for it, and a function that returns the values. A row without values has no path
 * in the tree. Listings are in the order of the rows. Categories that exist only on AWS (`iam/`, `spot/`), or for which
 * a record has no value, are left out.
 */
import { splitPrefix, subnetOf } from './address.ts'
import type { DocumentSigner } from './identity-document.ts'
import { namedKeys, type Instance, type Interface } from './instance.ts'

/** What is configured for all instances and not part of a record; each may be absent. */
export interface Provider {
  /** `services/domain`: the DNS domain of the provider's endpoints. */
  readonly domain?: string
  /** `services/partition`: the name of the provider's partition. */
  readonly partition?: string
  /** Signs identity documents. Absent: `dynamic/` has the document alone. */
  readonly signer?: DocumentSigner
}

/** The input of a row. */
export interface Subject {
  readonly instance: Instance
  readonly provider: Provider
}

/** One value of a category: the values of the pattern's parameters, and the text. */
export interface Entry {
  readonly parameters: readonly string[]
  readonly value: string
  /** The text for versions before `since`, if that version changed the format. */
  readonly earlier?: { readonly since: string; readonly value: string }
}

export interface Category {
  /** Path below a version, with parameters in braces: `meta-data/public-keys/{index}/openssh-key`. */
  readonly pattern: string
  /** `1.0`, or the date of the EC2 release that introduced it. */
  readonly since: string
  /** All values for an instance, in the order of the listing. */
  readonly entries: (subject: Subject) => readonly Entry[]
}

type Value = string | undefined

function single(name: string, since: string, value: (instance: Instance, provider: Provider) => Value): Category {
  const entries = ({ instance, provider }: Subject) => {
    const text = value(instance, provider)
    return text === undefined ? [] : [{ parameters: [], value: text }]
  }
  return { pattern: `meta-data/${name}`, since, entries }
}

function many(
  name: string,
  since: string,
  values: (instance: Instance) => readonly (readonly [parameter: string, value: string])[],
): Category {
  const entries = ({ instance }: Subject) =>
    values(instance).map(([parameter, value]) => ({ parameters: [parameter], value }))
  return { pattern: `meta-data/${name}`, since, entries }
}

function ofInterface(
  name: string,
  since: string,
  value: (nic: Interface, instance: Instance, deviceNumber: number) => Value,
): Category {
  const entries = ({ instance }: Subject) =>
    networkInterfaces(instance).flatMap((nic) => {
      const text = value(nic, instance, instance.interfaces.indexOf(nic))
      return text === undefined ? [] : [{ parameters: [nic.macAddress], value: text }]
    })
  return { pattern: `meta-data/network/interfaces/macs/{mac}/${name}`, since, entries }
}

/**
 * Like `ofInterface`, for a list of addresses. Older versions show only its first line (docs/contract.md#notes-on-ec2).
 */
function addressesOfInterface(name: string, since: string, value: (nic: Interface) => Value): Category {
  const { pattern, entries } = ofInterface(name, since, value)
  const firstLine = (text: string) => text.split('\n', 1)[0] ?? ''
  return {
    pattern,
    since,
    entries: (subject) =>
      entries(subject).map((entry) => ({ ...entry, earlier: { since: '2018-09-24', value: firstLine(entry.value) } })),
  }
}

/**
 * The interfaces that `network/` shows (contract C4; docs/clients.md#network-configuration). cloud-init needs the subnet
 * of an interface's IPv4 addresses. It does not configure an interface that is left out, so without the first one,
 * which the guest already uses, there are none.
 */
function networkInterfaces({ interfaces }: Instance): readonly Interface[] {
  const isComplete = ({ ipv4Addresses: [first] }: Interface) => first === undefined || first.includes('/')
  return isComplete(interfaces[0]!) ? interfaces.filter(isComplete) : []
}

const lines = (values: readonly string[]): Value => (values.length > 0 ? values.join('\n') : undefined)
const suffix = (id: string) => id.slice(id.indexOf('-') + 1)
const address = (withPrefix: string | undefined): Value =>
  withPrefix === undefined ? undefined : splitPrefix(withPrefix).address
const addresses = (withPrefixes: readonly string[]) => withPrefixes.map((a) => splitPrefix(a).address)

/** The addresses that DHCPv6 serves: none if the guest uses SLAAC (contract C4). */
const dhcpv6Addresses = (nic: Interface) => (nic.dhcpv6 ? nic.ipv6Addresses : [])

const firstInterface = ({ interfaces }: Instance) => interfaces[0]
const firstCloudIp = ({ interfaces }: Instance) => interfaces.flatMap(({ cloudIps }) => cloudIps)[0]

/**
 * Tag keys that the tree shows (contract C5). `=` is not allowed, because cloud-init reads `5=x` as an index of public
 * keys.
 */
const TAG_KEY = /^(?!(?:\.|\.\.|_index)$)[A-Za-z0-9+\-.,_:@]{1,255}$/

/** True for the key of a tag that the tree shows, if the instance shows its tags. */
export function isReadableTag(key: string): boolean {
  return TAG_KEY.test(key)
}

const tags = ({ tags, options }: Instance) =>
  options.instanceMetadataTags === 'enabled'
    ? Object.entries(tags)
        .filter(([key]) => isReadableTag(key))
        .sort(([a], [b]) => (a < b ? -1 : 1))
    : []

const devices =
  (prefix: string) =>
  ({ blockDevices }: Instance) =>
    Object.entries(blockDevices)
      .filter(([name]) => name.startsWith(prefix))
      .map(([name, device]) => [name.slice(prefix.length), device] as const)
      .sort(([a], [b]) => Number(a) - Number(b))

/** EC2's form: its order of the fields, times such as `21 Jan 2019 09:00:43 GMT`, and the state before the text. */
function formatEvents(events: Instance['events']): string {
  const gmt = (time: string) => new Date(time).toUTCString().slice('Mon, '.length)
  const documents = events.map(({ id, code, state, notBefore, notAfter, description }) => ({
    NotBefore: gmt(notBefore),
    Code: code,
    Description:
      state === 'active' ? description : `[${state === 'completed' ? 'Completed' : 'Canceled'}] ${description}`,
    EventId: id,
    ...(notAfter !== undefined && { NotAfter: gmt(notAfter) }),
    State: state,
  }))
  return JSON.stringify(documents)
}

/** The catalogue: one row for each category, in the order of listings. */
export const CATEGORIES: readonly Category[] = [
  single('ami-id', '1.0', ({ image }) => image),
  single('ami-launch-index', '1.0', () => '0'),
  single('ami-manifest-path', '1.0', () => '(unknown)'),
  single('block-device-mapping/ami', '2007-12-15', ({ blockDevices }) => blockDevices['ami']),
  many('block-device-mapping/ebs{n}', '2007-12-15', devices('ebs')),
  many('block-device-mapping/ephemeral{n}', '2007-12-15', devices('ephemeral')),
  single('block-device-mapping/root', '2007-12-15', ({ blockDevices }) => blockDevices['root']),
  single('block-device-mapping/swap', '2007-12-15', ({ blockDevices }) => blockDevices['swap']),
  single('events/maintenance/history', '2018-08-17', ({ events }) =>
    formatEvents(events.filter(({ state }) => state !== 'active')),
  ),
  single('events/maintenance/scheduled', '2018-08-17', ({ events }) =>
    formatEvents(events.filter(({ state }) => state === 'active')),
  ),
  single('hostname', '1.0', ({ fqdn }) => fqdn),
  single('instance-action', '2008-09-01', () => 'none'),
  single('instance-id', '1.0', ({ id }) => id),
  single('instance-life-cycle', '2019-10-01', () => 'on-demand'),
  single('instance-type', '2007-08-29', ({ serverType }) => serverType.handle),
  single('ipv6', '2021-01-03', (instance) => address(firstInterface(instance)?.ipv6Addresses[0])),
  single('local-hostname', '2007-01-19', ({ fqdn }) => fqdn),
  single('local-ipv4', '1.0', (instance) => address(firstInterface(instance)?.ipv4Addresses[0])),
  single('mac', '2011-01-01', (instance) => firstInterface(instance)?.macAddress),
  ofInterface('device-number', '2011-01-01', (_nic, _instance, deviceNumber) => String(deviceNumber)),
  ofInterface('interface-id', '2011-01-01', ({ id }) => id),
  {
    pattern: 'meta-data/network/interfaces/macs/{mac}/ipv4-associations/{public-ip}',
    since: '2011-01-01',
    entries: ({ instance }) =>
      networkInterfaces(instance).flatMap(({ macAddress, ipv4Addresses, cloudIps }) =>
        addresses(ipv4Addresses.slice(0, 1)).flatMap((value) =>
          cloudIps.map(({ publicIpv4 }) => ({ parameters: [macAddress, publicIpv4], value })),
        ),
      ),
  },
  ofInterface('ipv6-prefix', '2021-07-15', ({ ipv6Prefixes }) => lines(ipv6Prefixes)),
  addressesOfInterface('ipv6s', '2016-06-30', (nic) => lines(addresses(dhcpv6Addresses(nic)))),
  // EC2 gives it the date 2007-01-19, but its directory is from 2011
  ofInterface('local-hostname', '2011-01-01', (_nic, { fqdn }) => fqdn),
  addressesOfInterface('local-ipv4s', '2011-01-01', ({ ipv4Addresses }) => lines(addresses(ipv4Addresses))),
  ofInterface('mac', '2011-01-01', ({ macAddress }) => macAddress),
  ofInterface('owner-id', '2011-01-01', (_nic, { account }) => account),
  ofInterface('public-hostname', '2011-01-01', ({ cloudIps }) => cloudIps[0]?.fqdn),
  ofInterface('public-ipv4s', '2011-01-01', ({ cloudIps }) => lines(cloudIps.map(({ publicIpv4 }) => publicIpv4))),
  ofInterface('public-ipv6s', '2021-01-03', ({ cloudIps }) =>
    lines(cloudIps.flatMap(({ publicIpv6 }) => publicIpv6 ?? [])),
  ),
  ofInterface('security-group-ids', '2011-01-01', (_nic, { serverGroups }) => lines(serverGroups.map(({ id }) => id))),
  ofInterface('security-groups', '2011-01-01', (_nic, { serverGroups }) => lines(serverGroups.map(({ name }) => name))),
  // in this cloud each interface has its own subnet
  ofInterface('subnet-id', '2011-01-01', ({ id }) => `subnet-${suffix(id)}`),
  ofInterface('subnet-ipv4-cidr-block', '2011-01-01', ({ ipv4Addresses: [first] }) => first && subnetOf(first)),
  ofInterface('subnet-ipv6-cidr-blocks', '2016-06-30', (nic) =>
    lines([
      ...new Set(
        dhcpv6Addresses(nic)
          .filter((a) => a.includes('/'))
          .map(subnetOf),
      ),
    ]),
  ),
  // without a VPC cloud-init assumes EC2 Classic
  ofInterface('vpc-id', '2011-01-01', (_nic, { account }) => `vpc-${suffix(account)}`),
  single('placement/availability-zone', '2008-02-01', ({ zone }) => zone.handle),
  single('placement/availability-zone-id', '2019-10-01', ({ zone }) => zone.id),
  single('placement/region', '2020-08-24', ({ region }) => region),
  single('profile', '1.0', () => 'default-hvm'), // EC2 gives no date and always lists it
  single('public-hostname', '2007-01-19', (instance) => firstCloudIp(instance)?.fqdn),
  single('public-ipv4', '2007-01-19', (instance) => firstCloudIp(instance)?.publicIpv4),
  single('public-ipv6', '2021-01-03', (instance) => firstCloudIp(instance)?.publicIpv6), // not in EC2; as Tootles has it
  many('public-keys/{index}/openssh-key', '1.0', (instance) =>
    namedKeys(instance).map(({ key }, index) => [String(index), `${key}\n`]),
  ),
  single('reservation-id', '1.0', ({ id }) => `r-${suffix(id)}`),
  single('security-groups', '1.0', ({ serverGroups }) => lines(serverGroups.map(({ name }) => name))),
  single('services/domain', '2014-02-25', (_instance, { domain }) => domain),
  single('services/partition', '2015-10-20', (_instance, { partition }) => partition),
  many('tags/instance/{key}', '2021-03-23', tags),
]
