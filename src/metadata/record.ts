/**
 * What may a record be?
 *
 * The record of an instance that the control plane publishes: one JSON document per instance, in the words of the cloud's interface. The schema
 * below is the only description of it: the type, the check and the published JSON Schema come from here. `parse` turns an
 * untrusted document into a frozen Instance or says everything that is wrong with it; nothing downstream checks again.
 *
 * Canonical forms are demanded, never made: the script that publishes compares addresses as text, so a record that spells one in
 * another way would slip past the check for owners. Unknown fields are ignored, so that a publisher may be newer than a daemon.
 *
 * Every list, map and text is bounded, and so is the whole record (RECORD_MAX_BYTES, checked where bytes are read or written). So one instance
 * can cost a host only so much. publish.lua has the same bounds.
 *
 * Left out: user-data's bytes (they are stored beside the record, which only tells their size and digest).
 */
import Type, { type Static } from 'typebox'
import { Compile } from 'typebox/compile'
import Format from 'typebox/format'
import { Settings } from 'typebox/system'
import Value from 'typebox/value'
import { isIpv4, isIpv6, isIpv6Prefix, splitPrefix } from './address.ts'
import { DEFAULT_NETWORK, frozen, ID, ID_RULE, NAME, RECORD_MAX_BYTES, type Instance } from './instance.ts'

/** The schema number that this code reads and writes. */
export const SCHEMA = 1

/** RFC 3339, as publish.lua checks it too. */
const TIME = '^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$'
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

/** The schema with the bounds of earlier versions: a snapshot of theirs may hold such records, and they stay served. */
const FormerSchema = Type.Object({
  ...InstanceSchema.properties,
  tags: Type.Record(Type.String(), Type.String({ maxLength: 4096 }), { default: {} }),
  blockDevices: Type.Record(BlockDeviceName, BlockDevice, { default: {} }),
})

/** One thing that is wrong with a record: where (a JSON pointer) and what would be right. Never holds the record's own values. */
export interface Fault { readonly path: string, readonly message: string }

/** The result of `parse`. */
export type Parsed = { readonly ok: true, readonly instance: Instance } | { readonly ok: false, readonly faults: readonly Fault[] }

/** Since when a document, be the rest of it good or not, says that its user-data is sealed; undefined where it does not, or in no time that is one. */
export function sealOf(document: unknown): string | undefined {
  const sealedAt = (document as { sealedAt?: unknown } | null | undefined)?.sealedAt
  return typeof sealedAt === 'string' && sealedAt.length <= 35 && new RegExp(TIME).test(sealedAt) ? sealedAt : undefined
}

function withPrefix(isAddress: (address: string) => boolean, bits: number) {
  return (value: string) => {
    const { address, prefixLength } = splitPrefix(value)
    const canonical = prefixLength === undefined || value === `${address}/${String(prefixLength)}`
    return isAddress(address) && canonical && (prefixLength === undefined || (Number.isInteger(prefixLength) && prefixLength >= 1 && prefixLength <= bits))
  }
}

Format.Set('imds-ipv4', isIpv4)
Format.Set('imds-ipv6', isIpv6)
Format.Set('imds-ipv4-interface', withPrefix(isIpv4, 32))
Format.Set('imds-ipv6-interface', withPrefix(isIpv6, 128))
Format.Set('imds-ipv6-prefix', isIpv6Prefix)

Settings.Set({ maxErrors: 1000 })
const check = Compile(InstanceSchema)

/**
 * Checks an untrusted document (what JSON.parse or a YAML reader gave) and returns it as a frozen Instance with every default filled
 * in, or all of its faults. Does not change or keep its argument.
 */
export function parse(untrusted: unknown): Parsed {
  if (typeof untrusted !== 'object' || untrusted === null || Array.isArray(untrusted)) {
    return { ok: false, faults: [{ path: '', message: 'must be a JSON object' }] }
  }
  const value = Value.Default(InstanceSchema, known(InstanceSchema as Shape, untrusted))
  if (!check.Check(value)) return { ok: false, faults: check.Errors(value).flatMap(faultsOf) }
  const faults = contradictions(value)
  return faults.length > 0 ? { ok: false, faults } : { ok: true, instance: frozen(value) }
}

/** The fault of a document that is larger than RECORD_MAX_BYTES as JSON; empty where it is not. */
export function sizeFaults(document: unknown): Fault[] {
  let bytes: number
  try {
    bytes = Buffer.byteLength(JSON.stringify(document))
  } catch {
    return [{ path: '', message: 'cannot be written as JSON' }]
  }
  return bytes > RECORD_MAX_BYTES ? [{ path: '', message: `is ${String(bytes)} bytes as JSON, more than the limit of ${String(RECORD_MAX_BYTES)}` }] : []
}

/** The part of a JSON Schema that `known` reads. */
interface Shape {
  readonly properties?: Readonly<Record<string, Shape>>
  readonly patternProperties?: Readonly<Record<string, Shape>>
  readonly items?: Shape
  readonly maxItems?: number
  readonly maxProperties?: number
}

/** Names that mean something to JavaScript's objects. */
const UNSAFE_NAMES = ['__proto__', 'constructor', 'prototype']

/**
 * Copies what the schema knows of an untrusted value: fields, entries of maps and items of lists. It copies at most one more than the bound of a
 * list or map, which the check then refuses. So a check costs no more than the largest valid record, however large or deep the value is.
 */
function known({ properties, patternProperties, items, maxItems = 0, maxProperties = 0 }: Shape, value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) return items === undefined ? null : value.slice(0, maxItems + 1).map((item) => known(items, item))
  const fields = value as Readonly<Record<string, unknown>>
  if (properties !== undefined) {
    const given = Object.entries(properties).filter(([name]) => fields[name] !== undefined)
    return Object.fromEntries(given.map(([name, shape]) => [name, known(shape, fields[name])]))
  }
  if (patternProperties === undefined) return null
  const [pattern, shape] = Object.entries(patternProperties)[0]!
  const isKnown = new RegExp(pattern, 'u')
  const names = Object.keys(fields).slice(0, maxProperties + 1)
  const kept = names.length > maxProperties ? names : names.filter((name) => isKnown.test(name) && !UNSAFE_NAMES.includes(name))
  return Object.fromEntries(kept.map((name) => [name, known(shape, fields[name])]))
}

/**
 * What `parse` once returned, read back from where we kept it: frozen, or undefined where it never was valid. Takes its argument over. Accepts
 * the bounds of earlier versions, and fills in the defaults of fields that an older daemon did not know.
 */
export function restore(value: unknown): Instance | undefined {
  if (check.Check(value)) return contradictions(value).length === 0 ? frozen(value) : undefined
  const parsed = parse(value)
  if (parsed.ok) return parsed.instance
  const former: unknown = Value.Default(FormerSchema, value)
  return Value.Check(FormerSchema, former) && contradictions(former).length === 0 ? frozen(former) : undefined
}

type SchemaError = ReturnType<typeof check.Errors>[number]

/** A longer path ends in a tag's key that is too long: its parent is named instead. */
const LONGEST_PATH = 512

function faultsOf(error: SchemaError): Fault[] {
  const { instancePath, schemaPath, message } = error
  const path = instancePath.length > LONGEST_PATH ? instancePath.slice(0, instancePath.lastIndexOf('/')) : instancePath
  if (schemaPath.endsWith('/propertyNames')) return [] // an error with keyword propertyNames follows for the same names
  if (error.keyword === 'propertyNames') return [{ path, message: 'has a name that is too long' }]
  if (error.keyword !== 'required') return [{ path, message: hintAt(schemaPath, 'must be ') ?? message }]
  return error.params.requiredProperties.map((name) =>
    ({ path: `${path}/${name}`, message: hintAt(`${schemaPath}/properties/${name}`, 'is missing: must be ') ?? 'is missing' }))
}

/** What the schema at a pointer such as `#/properties/id` wants, in words. */
function hintAt(schemaPath: string, lead: string): string | undefined {
  let schema: unknown = InstanceSchema
  for (const step of schemaPath.split('/').slice(1)) schema = (schema as Record<string, unknown> | undefined)?.[step]
  const hint = (schema as { hint?: unknown } | undefined)?.hint
  return typeof hint === 'string' ? lead + hint : undefined
}

/** What the schema cannot say: things that must differ within one record. */
function contradictions(record: Static<typeof InstanceSchema>): Fault[] {
  const faults: Fault[] = []
  const seen = new Map<string, string>()
  const distinct = (kind: string, value: string, path: string) => {
    const first = seen.get(`${kind} ${value}`)
    if (first === undefined) seen.set(`${kind} ${value}`, path)
    else faults.push({ path, message: `is the same ${kind} as ${first}` })
  }
  record.interfaces.forEach(({ id, macAddress, network, ipv4Addresses, ipv6Addresses, ipv6Prefixes, cloudIps }, i) => {
    distinct('interface', id, `/interfaces/${String(i)}/id`)
    distinct('MAC address', macAddress, `/interfaces/${String(i)}/macAddress`)
    ipv4Addresses.forEach((a, n) => { distinct('address', `${network} ${splitPrefix(a).address}`, `/interfaces/${String(i)}/ipv4Addresses/${String(n)}`) })
    ipv6Addresses.forEach((a, n) => { distinct('address', `${network} ${splitPrefix(a).address}`, `/interfaces/${String(i)}/ipv6Addresses/${String(n)}`) })
    ipv6Prefixes.forEach((prefix, n) => { distinct('prefix', `${network} ${prefix}`, `/interfaces/${String(i)}/ipv6Prefixes/${String(n)}`) })
    cloudIps.forEach(({ publicIpv4 }, n) => { distinct('cloud IP', publicIpv4, `/interfaces/${String(i)}/cloudIps/${String(n)}/publicIpv4`) })
  })
  record.publicKeys.forEach(({ user }, i) => { distinct('user', user, `/publicKeys/${String(i)}/user`) })
  record.hypervisors.forEach((name, i) => { distinct('hypervisor', name, `/hypervisors/${String(i)}`) })
  return faults
}
