/**
 * Checks the record of an instance, which the control plane publishes as a JSON document. `parse` turns an untrusted
 * document into an Instance, or lists all of its faults. No later step checks a record again.
 *
 * A record must use canonical forms; `parse` does not normalise. publish.lua compares addresses as text, so another
 * form of an address would bypass its check of the owner. Unknown fields are ignored, so that a publisher may be newer
 * than a daemon.
 *
 * MAX_RECORD_BYTES limits the whole record. The code that reads or writes the bytes checks it. User-data is stored
 * beside the record, which has only its size and digest.
 */
import type { Static } from 'typebox'
import { Compile } from 'typebox/compile'
import Format from 'typebox/format'
import { Settings } from 'typebox/system'
import Value from 'typebox/value'
import { isIpv4, isIpv6, isIpv6Prefix, UNUSABLE_ADDRESS, isUnusableAddress, splitPrefix } from './address.ts'
import { MAX_RECORD_BYTES, namedKeys, type Instance } from './instance.ts'
import type { Parsed } from './parsed.ts'
import { InstanceSchema, MAX_PUBLIC_KEYS } from './schema.ts'
import { isTime } from './time.ts'

/** A fault of a record: its place (a JSON pointer), and a message, which never contains a value of the record. */
export interface Fault {
  readonly path: string
  readonly message: string
}

/**
 * The time since which a document's user-data is sealed; undefined if it has no valid one. The rest of the document may
 * be faulty.
 */
export function sealOf(document: unknown): string | undefined {
  const sealedAt = (document as { sealedAt?: unknown } | null | undefined)?.sealedAt
  return typeof sealedAt === 'string' && isTime(sealedAt) ? sealedAt : undefined
}

/** The revision of a document; undefined if it has no valid one. The rest of the document may be faulty. */
export function revisionOf(document: unknown): number | undefined {
  const revision = (document as { revision?: unknown } | null | undefined)?.revision
  return isRevision(revision) ? revision : undefined
}

export function isRevision(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 1
}

function withPrefix(isAddress: (address: string) => boolean, bits: number) {
  return (value: string) => {
    const { address, prefixLength } = splitPrefix(value)
    const canonical = prefixLength === undefined || value === `${address}/${prefixLength}`
    return (
      isAddress(address) &&
      canonical &&
      (prefixLength === undefined || (Number.isInteger(prefixLength) && prefixLength >= 1 && prefixLength <= bits))
    )
  }
}

Format.Set('imds-ipv4', isIpv4)
Format.Set('imds-ipv6', isIpv6)
Format.Set('imds-ip', (value) => isIpv4(value) || isIpv6(value))
Format.Set('imds-ipv4-interface', withPrefix(isIpv4, 32))
Format.Set('imds-ipv6-interface', withPrefix(isIpv6, 128))
Format.Set('imds-ipv6-prefix', isIpv6Prefix)

Settings.Set({ maxErrors: 1000 })
const check = Compile(InstanceSchema)

/**
 * Parses an untrusted document (from a JSON or YAML parser) into an Instance with all defaults, or lists all of
 * its faults. Does not change or keep its argument.
 */
export function parse(untrusted: unknown): Parsed<Instance, Fault> {
  if (typeof untrusted !== 'object' || untrusted === null || Array.isArray(untrusted)) {
    return { ok: false, faults: [{ path: '', message: 'must be a JSON object' }] }
  }
  const value = Value.Default(InstanceSchema, known(InstanceSchema as Shape, untrusted))
  if (!check.Check(value)) {
    const faults = check.Errors(value).flatMap(faultsOf)
    const each = new Map(faults.map((fault) => [`${fault.path} ${fault.message}`, fault])) // one text may break two rules
    return { ok: false, faults: [...each.values()] }
  }
  const faults = [...contradictions(value), ...addressFaults(value)]
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}

/** The unusable addresses (contract E1). */
function addressFaults({ interfaces }: Instance): Fault[] {
  return interfaces.flatMap((nic, i) =>
    (['ipv4Addresses', 'ipv6Addresses'] as const).flatMap((name) =>
      nic[name].flatMap((address, n) =>
        isUnusableAddress(splitPrefix(address).address)
          ? [{ path: `/interfaces/${i}/${name}/${n}`, message: UNUSABLE_ADDRESS }]
          : [],
      ),
    ),
  )
}

/** The fault of a document that exceeds MAX_RECORD_BYTES as JSON; empty if it does not. */
export function sizeFaults(document: unknown): Fault[] {
  let bytes: number
  try {
    bytes = Buffer.byteLength(JSON.stringify(document))
  } catch {
    return [{ path: '', message: 'cannot be written as JSON' }]
  }
  return bytes > MAX_RECORD_BYTES
    ? [{ path: '', message: `is ${bytes} bytes as JSON, more than the limit of ${MAX_RECORD_BYTES}` }]
    : []
}

/** The keywords of a JSON Schema that are followed. */
export interface Shape {
  readonly properties?: Readonly<Record<string, Shape>>
  readonly patternProperties?: Readonly<Record<string, Shape>>
  readonly items?: Shape
  readonly maxItems?: number
  readonly maxProperties?: number
}

/**
 * Copies the parts of an untrusted value that the schema has: fields, entries of maps and items of lists. It copies at
 * most one more entry than the limit of a list or map, and the check then rejects that. So checking any value costs no
 * more than checking the largest valid record.
 */
function known(
  { properties, patternProperties, items, maxItems = 0, maxProperties = 0 }: Shape,
  value: unknown,
): unknown {
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value))
    return items === undefined ? null : value.slice(0, maxItems + 1).map((item) => known(items, item))
  const fields = value as Readonly<Record<string, unknown>>
  if (properties !== undefined) {
    const given = Object.entries(properties).filter(([name]) => fields[name] !== undefined)
    return Object.fromEntries(given.map(([name, shape]) => [name, known(shape, fields[name])]))
  }
  if (patternProperties === undefined) return null
  const [pattern, shape] = Object.entries(patternProperties)[0]!
  const isKnown = new RegExp(pattern, 'u')
  const names = Object.keys(fields).slice(0, maxProperties + 1)
  const kept = names.length > maxProperties ? names : names.filter((name) => isKnown.test(name))
  return Object.fromEntries(kept.map((name) => [name, known(shape, fields[name])]))
}

const NAME_FAULT = 'has a name that is too long, or that has half of a surrogate pair'

type SchemaError = ReturnType<typeof check.Errors>[number]

/** A longer path ends in a tag key that is too long. The fault then has the path of its parent. */
const MAX_PATH_LENGTH = 512

function faultsOf(error: SchemaError): Fault[] {
  const { instancePath, schemaPath, message } = error
  const path =
    instancePath.length > MAX_PATH_LENGTH ? instancePath.slice(0, instancePath.lastIndexOf('/')) : instancePath
  if (schemaPath.endsWith('/propertyNames')) return [] // an error with keyword propertyNames follows for the same names
  if (error.keyword === 'propertyNames') return [{ path, message: NAME_FAULT }]
  if (error.keyword !== 'required') return [{ path, message: hintAt(schemaPath, 'must be ') ?? message }]
  return error.params.requiredProperties.map((name) => ({
    path: `${path}/${name}`,
    message: hintAt(`${schemaPath}/properties/${name}`, 'is missing: must be ') ?? 'is missing',
  }))
}

/** What the schema at a pointer such as `#/properties/id` requires, in words. */
function hintAt(schemaPath: string, lead: string): string | undefined {
  let schema: unknown = InstanceSchema
  for (const step of schemaPath.split('/').slice(1)) schema = (schema as Record<string, unknown> | undefined)?.[step]
  const hint = (schema as { hint?: unknown } | undefined)?.hint
  return typeof hint === 'string' ? lead + hint : undefined
}

/** The faults that a schema cannot express: values that must be distinct within one record, and the number of all keys. */
function contradictions(record: Static<typeof InstanceSchema>): Fault[] {
  const faults: Fault[] = []
  const seen = new Map<string, string>()
  const distinct = (kind: string, value: string, path: string) => {
    const first = seen.get(`${kind} ${value}`)
    if (first === undefined) seen.set(`${kind} ${value}`, path)
    else faults.push({ path, message: `is the same ${kind} as ${first}` })
  }
  record.interfaces.forEach(({ id, macAddress, network, ipv4Addresses, ipv6Addresses, ipv6Prefixes, cloudIps }, i) => {
    distinct('interface', id, `/interfaces/${i}/id`)
    distinct('MAC address', macAddress, `/interfaces/${i}/macAddress`)
    for (const [name, addresses] of Object.entries({ ipv4Addresses, ipv6Addresses }))
      addresses.forEach((address, n) => {
        distinct('address', `${network} ${splitPrefix(address).address}`, `/interfaces/${i}/${name}/${n}`)
      })
    ipv6Prefixes.forEach((prefix, n) => {
      distinct('prefix', `${network} ${prefix}`, `/interfaces/${i}/ipv6Prefixes/${n}`)
    })
    cloudIps.forEach(({ publicIpv4 }, n) => {
      distinct('cloud IP', publicIpv4, `/interfaces/${i}/cloudIps/${n}/publicIpv4`)
    })
  })
  record.events.forEach(({ id }, i) => distinct('event', id, `/events/${i}/id`))
  record.publicKeys.forEach(({ user }, i) => distinct('user', user, `/publicKeys/${i}/user`))
  const keys = namedKeys(record).length
  if (keys > MAX_PUBLIC_KEYS)
    faults.push({
      path: '/publicKeys',
      message: `has ${keys} keys, more than the limit of ${MAX_PUBLIC_KEYS}`,
    })
  record.hypervisors.forEach((name, i) => distinct('hypervisor', name, `/hypervisors/${i}`))
  return faults
}
