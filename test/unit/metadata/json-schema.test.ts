import { expect, test } from 'vitest'
import { jsonSchema } from '../../../src/metadata/json-schema.ts'
import { InstanceSchema } from '../../../src/metadata/schema.ts'
import { parse } from '../../../src/metadata/record.ts'
import { aFullInstance, anInstance } from '../../support/fixtures/instance.ts'

type Schema = Readonly<Record<string, unknown>>

/** Every schema within a schema, itself included, with its path. */
function within(schema: Schema, path = ''): [string, Schema][] {
  const {
    properties = {},
    patternProperties = {},
    items,
  } = schema as { properties?: Record<string, Schema>; patternProperties?: Record<string, Schema>; items?: Schema }
  const parts = [
    ...Object.entries({ ...properties, ...patternProperties }),
    ...(items === undefined ? [] : [['[]', items] as const]),
  ]
  return [[path, schema], ...parts.flatMap(([name, part]) => within(part, `${path}/${name}`))]
}

const ALL = within(jsonSchema() as Schema)
const at = (path: string) => ALL.find(([place]) => place === path)?.[1]

/** Keywords of JSON Schema's draft 2020-12 and its formats; a validator in another language knows no others. */
const KEYWORDS = [
  '$schema',
  '$id',
  'type',
  'title',
  'description',
  'default',
  'const',
  'enum',
  'anyOf',
  'format',
  'pattern',
  'minLength',
  'maxLength',
  'minimum',
  'maximum',
  'minItems',
  'maxItems',
  'maxProperties',
  'propertyNames',
  'items',
  'properties',
  'patternProperties',
  'additionalProperties',
  'required',
]

test('it names its dialect and has only keywords and formats of that dialect', () => {
  expect(jsonSchema()).toMatchObject({ $schema: 'https://json-schema.org/draft/2020-12/schema', type: 'object' })
  expect(
    ALL.flatMap(([path, schema]) =>
      Object.keys(schema)
        .filter((key) => !KEYWORDS.includes(key))
        .map((key) => `${path} ${key}`),
    ),
  ).toEqual([])
  const formats = new Set(ALL.map(([, { format }]) => format).filter((format) => format !== undefined))
  expect([...formats].sort()).toEqual(['ipv4', 'ipv6'])
})

test('a field with a default is optional, and parse accepts a record without it', () => {
  const required = at('')!['required'] as string[]
  for (const name of required)
    expect([name, parse({ ...aFullInstance(), [name]: undefined }).ok]).toEqual([name, false])
  const optional = Object.keys((InstanceSchema as unknown as { properties: object }).properties).filter(
    (name) => !required.includes(name),
  )
  expect(optional).toContain('tags')
  for (const name of optional) expect([name, parse({ ...anInstance(), [name]: undefined }).ok]).toEqual([name, true])
})

test('unknown fields are allowed, so that a publisher may be newer than a validator', () => {
  expect(ALL.filter(([path, { additionalProperties }]) => additionalProperties === false && path === '')).toEqual([])
})

test("the bounds and patterns of every field are those of the record's schema", () => {
  const ours = within(JSON.parse(JSON.stringify(InstanceSchema)) as Schema)
  const bounds = ({ pattern, minimum, maximum, maxLength, maxItems, maxProperties }: Schema) => [
    pattern,
    minimum,
    maximum,
    maxLength,
    maxItems,
    maxProperties,
  ]
  expect(ours.length).toBeGreaterThan(40)
  for (const [path, schema] of ours) expect([path, bounds(at(path)!)]).toEqual([path, bounds(schema)])
})

test("our hints become descriptions, and the record's own schema keeps them", () => {
  const hinted = within(JSON.parse(JSON.stringify(InstanceSchema)) as Schema).filter(
    ([, { hint }]) => typeof hint === 'string',
  )
  expect(hinted.length).toBeGreaterThan(5)
  for (const [path, { hint }] of hinted)
    expect([path, at(path)!['description']]).toEqual([path, expect.stringContaining(hint as string)])
})
