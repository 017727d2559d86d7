/**
 * The schema of an instance's record: the only description of it. The type, the check (record.ts) and the published JSON Schema come from here.
 *
 * Every list, map and text has a bound, so that one instance can cost a host only so much. publish.lua has the same bounds.
 */
import Type from 'typebox'
import { DEFAULT_NETWORK, ID, ID_RULE, NAME } from './identifiers.ts'

/** The schema number that this code reads and writes. */
export const SCHEMA = 1

/** RFC 3339, as publish.lua checks it too. */
export const TIME = '^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$'
const LABEL = '[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?'

function text(hint: string, options: { pattern?: string, maxLength?: number, format?: string, default?: string, description?: string }) {
  return Type.String({ ...options, hint })
}

function id() {
  return text(ID_RULE, { pattern: ID })
}

function fqdn() {
  return text('a domain name without a final dot, its last label not a number',
    { pattern: `^(?=.{1,253}$)(${LABEL}\\.)*(?!\\d+$)${LABEL}$`, maxLength: 253 })
}

function oneOf<T extends string[]>(values: readonly [...T], fallback: T[number]) {
  return Type.Enum<T>(values, { default: fallback, hint: `one of ${values.join(', ')}` })
}

const ipv4 = text('an IPv4 address', { format: 'imds-ipv4' })
const ipv6 = text('an IPv6 address in its shortest, lower-case form', { format: 'imds-ipv6' })
const ipv4Interface = text('an IPv4 address, with its prefix length where there is one: 10.0.0.2/30', { format: 'imds-ipv4-interface' })
const ipv6Interface = text('an IPv6 address in its shortest, lower-case form, with its prefix length where there is one: fd00::2/64',
  { format: 'imds-ipv6-interface' })
const ipv6Prefix = text('an IPv6 network of global or unique local addresses in its shortest, lower-case form, its length a multiple of 4 from 48 to 124: 2a02:1348:178:1::/64',
  { format: 'imds-ipv6-prefix' })

const CloudIp = Type.Object({
  id: id(),
  publicIpv4: ipv4,
  publicIpv6: Type.Optional(ipv6),
  fqdn: fqdn(),
}, { description: 'A cloud IP that is mapped to the interface. Its addresses are translated: they never live on the interface.' })

const Interface = Type.Object({
  id: id(),
  macAddress: text('a MAC address in lower case with colons: 02:24:19:00:00:01', { pattern: '^[0-9a-f]{2}(:[0-9a-f]{2}){5}$' }),
  network: text('the name of a network', { pattern: NAME, default: DEFAULT_NETWORK }),
  ipv4Addresses: Type.Array(ipv4Interface, { default: [], maxItems: 64 }),
  ipv6Addresses: Type.Array(ipv6Interface, { default: [], maxItems: 64 }),
  ipv6Prefixes: Type.Array(ipv6Prefix, {
    default: [], maxItems: 64, description: 'Every address in it is the instance\'s: a guest with SLAAC makes and changes its addresses itself.',
  }),
  dhcpv6: Type.Boolean({ default: false, description: 'DHCPv6 serves ipv6Addresses. Only then may the tree show them: cloud-init turns DHCPv6 on when it sees any.' }),
  cloudIps: Type.Array(CloudIp, { default: [], maxItems: 64 }),
}, { description: 'A network interface. The first of the list is device 0.' })

const ServerGroup = Type.Object({ id: id(), name: text('a name on one line', { pattern: '^[^\\x00-\\x1f\\x7f]{1,255}$' }) })

const PublicKey = Type.Object({
  user: id(),
  key: text('one line of an authorized_keys file: type, base64 and a comment', {
    pattern: '^(ssh-|ecdsa-sha2-|sk-)[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( [^\\x00-\\x1f\\x7f]*)?$', maxLength: 16384,
  }),
}, { description: 'The SSH key of one user\'s profile.' })

const Options = Type.Object({
  httpEndpoint: oneOf(['enabled', 'disabled'], 'enabled'),
  httpTokens: oneOf(['optional', 'required'], 'optional'),
  httpPutResponseHopLimit: Type.Integer({ minimum: 1, maximum: 64, default: 1 }),
  httpProtocolIpv6: oneOf(['enabled', 'disabled'], 'disabled'),
  instanceMetadataTags: oneOf(['enabled', 'disabled'], 'disabled'),
}, { default: {}, description: 'EC2\'s metadata options of an instance, with EC2\'s names and defaults.' })

const BlockDeviceName = Type.String({ pattern: '^(ami|root|swap|ebs[0-9]{1,3}|ephemeral[0-9]{1,3})$' })
const BlockDevice = text('a device name, with or without /dev/', { pattern: '^(/dev/)?[A-Za-z0-9][A-Za-z0-9/_-]{0,62}$' })

const UserData = Type.Object({
  size: Type.Integer({ minimum: 0, description: 'bytes' }),
  sha256: text('a SHA-256 digest as 64 lower-case hexadecimal digits', { pattern: '^[0-9a-f]{64}$' }),
}, { description: 'What the user-data\'s bytes must be. Absent: the instance has none.' })

/** The JSON Schema (draft 2020-12) of a record. `hint` is ours: how a person would say what is wanted. */
export const InstanceSchema = Type.Object({
  schema: Type.Literal(SCHEMA, { hint: `the number ${String(SCHEMA)}` }),
  revision: Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER, description: 'Grows with every change of the instance.' }),
  id: id(),
  fqdn: fqdn(),
  account: id(),
  serverType: Type.Object({ id: id(), handle: text('a handle', { pattern: NAME }) }),
  image: id(),
  zone: Type.Object({ id: id(), handle: text('a handle', { pattern: NAME }) }),
  region: text('the name of a region', { pattern: NAME }),
  interfaces: Type.Array(Interface, { minItems: 1, maxItems: 32 }),
  serverGroups: Type.Array(ServerGroup, { default: [], maxItems: 256 }),
  publicKeys: Type.Array(PublicKey, { default: [], maxItems: 256 }),
  tags: Type.Record(Type.String(), Type.String({ maxLength: 256 }), {
    default: {}, maxProperties: 50, propertyNames: { maxLength: 128 },
    description: 'Key to value, bounded as on EC2. Shown in the tree where options.instanceMetadataTags is enabled.',
  }),
  blockDevices: Type.Record(BlockDeviceName, BlockDevice, {
    default: {}, maxProperties: 256, description: 'Virtual device name (ami, root, swap, ebs1, ephemeral0) to device.',
  }),
  options: Options,
  userData: Type.Optional(UserData),
  sealedAt: Type.Optional(text('a time such as 2026-11-20T15:04:05Z (RFC 3339)', {
    pattern: TIME, maxLength: 35,
    description: 'Present: the user-data is neither listed nor answered. A publish without it keeps the seal that is there; only an unseal lifts it.',
  })),
  hypervisors: Type.Array(text('the name of a hypervisor', { pattern: NAME }), {
    minItems: 1, maxItems: 2, description: 'Where the instance runs: one name, or two during a live migration.',
  }),
}, { $id: 'imds:instance:1', title: 'imds instance record' })

/** The schema with the bounds of earlier versions: their snapshots may hold such records, and these are still served. */
export const FormerSchema = Type.Object({
  ...InstanceSchema.properties,
  tags: Type.Record(Type.String(), Type.String({ maxLength: 4096 }), { default: {} }),
  blockDevices: Type.Record(BlockDeviceName, BlockDevice, { default: {} }),
})
