/**
 * The trees beside EC2's: NoCloud's (contract H5) and OpenStack's (H6), with the vendor data (H7). Like EC2's tree they
 * are built from one record, so that what is listed answers.
 *
 * Both are small and few guests ask for them, so they are built at the first request, and as JSON: cloud-init reads
 * NoCloud's files as YAML, of which JSON is a part.
 */
import { hkdfSync } from 'node:crypto'
import { buildContent, textContent, type Content } from './content.ts'
import { namedKeys, type Instance } from './instance.ts'
import { networkConfig, networkData } from './network-config.ts'

/** The paths of both trees, such as `nocloud/meta-data`, without slashes at their ends. */
export type Seeds = ReadonlyMap<string, Content>

/**
 * The versions that OpenStack's clients ask for, oldest first. Without 2013-04-04: cloudbase-init takes its metadata as a
 * promise that it may post a Windows password, and sets a random one at each boot.
 */
const OPENSTACK_VERSIONS = [
  '2012-08-10',
  '2013-10-17',
  '2015-10-15',
  '2016-06-30',
  '2016-10-06',
  '2017-02-22',
  '2018-08-27',
  '2020-10-14',
  'latest',
] as const

/** How many bytes `random_seed` has: as many as Nova's. */
const RANDOM_SEED_BYTES = 512

/**
 * Builds both trees. `userData` is undefined if the instance has none, or sealed user-data. `randomKey`: a secret from
 * which `random_seed` is derived.
 */
export function buildSeeds(instance: Instance, userData: Uint8Array | undefined, randomKey: Uint8Array): Seeds {
  return new Map([...noCloud(instance, userData), ...openStack(instance, userData, randomKey)])
}

/**
 * A 404 for user-data or vendor data would make cloud-init give up on the whole seed: they are empty instead. cloud-init
 * and Talos repeat a 404 for network-config at each boot (docs/clients.md#nocloud).
 */
function noCloud(instance: Instance, userData: Uint8Array | undefined): [string, Content][] {
  const { id, fqdn, serverType, zone, region, vendorData = '' } = instance
  const metadata = {
    'instance-id': id,
    'local-hostname': fqdn,
    hostname: fqdn,
    'instance-type': serverType.handle,
    'availability-zone': zone.handle,
    zone: zone.handle, // Talos
    region,
    'public-keys': namedKeys(instance).map(({ key }) => key),
  }
  const files: [string, Content][] = [
    ['meta-data', json(metadata)],
    ['network-config', json(networkConfig(instance))],
    ['user-data', bytes(userData ?? Buffer.alloc(0), instance)],
    ['vendor-data', textContent(vendorData)],
  ]
  return [
    ['nocloud', listing(files)],
    ...files.map(([name, content]): [string, Content] => [`nocloud/${name}`, content]),
  ]
}

function openStack(instance: Instance, userData: Uint8Array | undefined, randomKey: Uint8Array): [string, Content][] {
  const { vendorData } = instance
  const files: [since: string, name: string, content: Content][] = [
    ['2012-08-10', 'meta_data.json', json(openStackMetadata(instance, randomKey))],
    ['2013-10-17', 'vendor_data.json', json(vendorData === undefined ? {} : { 'cloud-init': vendorData })],
    ['2015-10-15', 'network_data.json', json(networkData(instance))],
    // cloud-init would run the same vendor data twice
    ['2016-10-06', 'vendor_data2.json', json({})],
  ]
  if (userData !== undefined) files.push(['2012-08-10', 'user_data', bytes(userData, instance)])
  const versions = OPENSTACK_VERSIONS.flatMap((version) => {
    const visible = files.filter(([since]) => since <= version).map(([, name, content]) => [name, content] as const)
    return [
      [`openstack/${version}`, listing(visible)] as [string, Content],
      ...visible.map(([name, content]): [string, Content] => [`openstack/${version}/${name}`, content]),
    ]
  })
  return [['openstack', textContent(OPENSTACK_VERSIONS.join('\n'))], ...versions]
}

/** `uuid` is the id of the instance: a guest that changes its data source does not take itself for a new one. */
function openStackMetadata(instance: Instance, randomKey: Uint8Array): object {
  const { id, fqdn, account, zone, tags, options } = instance
  const keys = namedKeys(instance)
  // derived, since another value at each request would wake those that wait for a change
  const randomSeed = Buffer.from(hkdfSync('sha512', randomKey, '', `imds random_seed ${id}`, RANDOM_SEED_BYTES))
  return {
    uuid: id,
    name: id,
    hostname: fqdn,
    launch_index: 0,
    availability_zone: zone.handle,
    project_id: account,
    public_keys: Object.fromEntries(keys.map(({ name, key }) => [name, key])),
    random_seed: randomSeed.toString('base64'),
    keys: keys.map(({ name, key }) => ({ name, type: 'ssh', data: key })),
    ...(options.instanceMetadataTags === 'enabled' && { meta: tags }),
  }
}

function json(value: object): Content {
  return textContent(`${JSON.stringify(value, undefined, 2)}\n`, 'application/json')
}

function bytes(userData: Uint8Array, { userData: described }: Instance): Content {
  return buildContent(userData, 'application/octet-stream', userData.length > 0 ? described?.sha256 : undefined)
}

function listing(files: readonly (readonly [string, Content])[]): Content {
  return textContent(files.map(([name]) => name).join('\n'))
}
