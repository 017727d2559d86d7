/**
 * Values that a schema of the OpenAPI document allows. Texts that name a resource have ids of the lane's account, of
 * others, and of nobody.
 */
import { ADAS_KEY, secretOf } from '../../support/fixtures/region.ts'
import type { Dice } from '../dice.ts'
import type { Lane } from './population.ts'
import { COMMON, TOKEN_USER } from './region.ts'

/** The keywords that the document has (test/imds-api/openapi.test.ts). */
export interface Schema {
  readonly type?: string | readonly string[]
  readonly anyOf?: readonly Schema[]
  readonly const?: unknown
  readonly enum?: readonly unknown[]
  readonly format?: string
  readonly pattern?: string
  readonly minimum?: number
  readonly maximum?: number
  readonly minItems?: number
  readonly maxItems?: number
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, Schema>>
  readonly additionalProperties?: boolean | Schema
  readonly items?: Schema
}

/** What values are made from: `planted` are ids of all accounts. */
export interface Source {
  readonly dice: Dice
  readonly lane: Lane
  readonly planted: readonly string[]
}

/** Prefixes of the ids that a field or a collection takes. */
export const KINDS: Readonly<Record<string, readonly string[]>> = {
  account: ['acc'],
  account_id: ['acc'],
  accounts: ['acc'],
  api_clients: ['cli'],
  applications: ['app'],
  cloud_ip: ['cip'],
  cloud_ips: ['cip'],
  collaborations: ['col'],
  config_maps: ['cfg'],
  database_servers: ['dbs'],
  database_types: ['dbt'],
  destination: ['int', 'srv', 'grp', 'dbs'],
  events: ['1'],
  id: ['grp'],
  image: ['img', 'debian'],
  images: ['img', 'debian'],
  interfaces: ['int'],
  server: ['srv'],
  server_group: ['grp'],
  server_groups: ['grp'],
  server_type: ['typ', '1gb'],
  server_types: ['typ', '1gb'],
  servers: ['srv'],
  users: ['usr'],
  zone: ['zon', 'gb1'],
  zones: ['zon', 'gb1'],
}

/** The id of a resource with one of these prefixes: of the lane's account, of any account, or one that nobody has. */
export function anId({ dice, lane, planted }: Source, prefixes: readonly string[]): string {
  const fits = (id: string) => prefixes.includes(id.split(/[-.]/, 1)[0]!)
  const ids = (dice.chance(0.75) ? [...lane.ids, ...COMMON] : planted).filter(fits)
  const isUnknown = dice.chance(0.03) // drawn in any case: `--index` has other ids, but the same choices
  return isUnknown || ids.length === 0 ? `${dice.pick(prefixes)}-zzzz9` : dice.pick(ids)
}

/** Texts for fields that are known by their name. */
const NAMED: Readonly<Record<string, readonly string[]>> = {
  after: ['now'],
  email: ['new@example.net', 'someone@example.net'],
  fields: ['id', 'id,url'],
  password: [secretOf(TOKEN_USER), 'wrong'],
  scope: ['infrastructure', 'orbit', 'infrastructure orbit'],
  ssh_key: [ADAS_KEY, ''],
  user_data: ['IyEvYmluL3NoCg==', ''],
  username: [TOKEN_USER, 'tess@example.net'],
}
const FORMATS: Readonly<Record<string, readonly string[]>> = {
  'country-code': ['GB', 'DE', 'US'],
  'date-time': ['2126-11-20T15:04:05Z', '2027-01-01T00:00:00+01:00'],
  'eu-vat-number': ['DE136695976'],
  hostname: ['www.example.net', 'a.example.net.'],
  network: ['127.0.0.0/8', '::/0', '192.0.2.1'],
  'pointer-name': ['www.example.net', '*.example.net', '_a.example.net'],
  telephone: ['+442079460000', '+12025550100'],
}
const PATTERNS: Readonly<Record<string, readonly string[]>> = {
  '^[0-9]{1,5}$': ['80', '65535'],
  '^[\\x21-\\x7e]{1,255}$': ['vault', 'https://vault.example.net'],
}
const TEXTS = ['web', 'a name', 'ünïcödé', 'x'.repeat(255), '  ', 'a,b', '名前', '👩‍🚀', "o'clock", '50%']

/** A value that a schema allows. `name`: of the field. */
export function valueOf(schema: Schema, name: string, source: Source): unknown {
  const { dice } = source
  const { anyOf, type, items, minItems = 0, minimum = 0, maximum = 1_000 } = schema
  if (anyOf !== undefined) return valueOf(dice.pick(anyOf), name, source)
  if (schema.const !== undefined) return schema.const
  if (schema.enum !== undefined) return dice.pick(schema.enum)
  switch (typeof type === 'string' ? type : type?.[0]) {
    case 'null':
      return null
    case 'boolean':
      return dice.chance(0.5)
    case 'integer':
      return dice.chance(0.3)
        ? dice.pick([minimum, maximum])
        : minimum + dice.below(Math.min(maximum - minimum, 1_000) + 1)
    case 'array':
      return Array.from({ length: minItems + dice.below(3) }, () => valueOf(items ?? {}, name, source))
    case 'object':
      return objectOf(schema, source)
    case 'string':
      return textOf(schema, name, source)
    default:
      return dice.pick([null, 1, 'text', [], {}])
  }
}

function objectOf({ properties = {}, required = [], additionalProperties }: Schema, source: Source): object {
  const { dice } = source
  const names = Object.keys(properties).filter((name) => required.includes(name) || dice.chance(0.35))
  const others = typeof additionalProperties === 'object' ? additionalProperties : { type: 'string' }
  const extra = additionalProperties === undefined || additionalProperties === false ? 0 : dice.below(4)
  return Object.fromEntries([
    ...names.map((name) => [name, valueOf(properties[name]!, name, source)] as const),
    ...Array.from({ length: extra }, () => [dice.pick(TEXTS).slice(0, 20), valueOf(others, '', source)] as const),
  ])
}

/** Some texts have the marker of the lane's account: no other account may see them. */
function textOf({ format, pattern }: Schema, name: string, source: Source): string {
  const { dice, lane } = source
  const kinds = KINDS[name]
  if (kinds !== undefined) return anId(source, kinds)
  if (name === 'after' && lane.cursors.length > 0) return dice.pick(lane.cursors)
  if (name === 'email' && dice.chance(0.5)) return lane.account.invites
  if (NAMED[name] !== undefined) return dice.pick(NAMED[name])
  if (format !== undefined && format !== 'line') {
    const texts = FORMATS[format]
    if (texts === undefined) throw new Error(`FORMATS has no text of the format ${format}, which ${name} has`)
    return dice.pick(texts)
  }
  return dice.pick(PATTERNS[pattern ?? ''] ?? [...TEXTS, lane.account.marker, lane.account.marker])
}
