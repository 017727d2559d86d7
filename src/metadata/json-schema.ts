/**
 * The JSON Schema of the record for other programs: editors, tests of a control plane, validators in other languages.
 * It is derived from InstanceSchema and has standard keywords only. Only `parse` and `imdsctl validate` check the rest:
 * addresses with a prefix length, values that must be distinct within a record, and the number of all keys.
 */
import { InstanceSchema } from './schema.ts'

/** Our formats that have a standard equivalent. */
const STANDARD_FORMATS: Readonly<Record<string, string>> = { 'imds-ipv4': 'ipv4', 'imds-ipv6': 'ipv6' }

type Schema = Readonly<Record<string, unknown>>

/** The JSON Schema (draft 2020-12) of a record. */
export function jsonSchema(): object {
  return {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    ...standard(JSON.parse(JSON.stringify(InstanceSchema)) as Schema),
  }
}

function standard({
  hint,
  description,
  format,
  required,
  properties,
  patternProperties,
  items,
  ...rest
}: Schema): object {
  const known = STANDARD_FORMATS[String(format)]
  const texts = [hint, description].filter((text) => typeof text === 'string')
  // A field with a default is optional: `parse` adds it.
  const needed = ((required ?? []) as string[]).filter(
    (name) => (properties as Record<string, Schema>)[name]?.['default'] === undefined,
  )
  return {
    ...rest,
    ...(texts.length > 0 && { description: texts.join('. ') }),
    ...(known !== undefined && { format: known }),
    ...(needed.length > 0 && { required: needed }),
    ...(properties !== undefined && { properties: standardOf(properties as Record<string, Schema>) }),
    ...(patternProperties !== undefined && {
      patternProperties: standardOf(patternProperties as Record<string, Schema>),
    }),
    ...(items !== undefined && { items: standard(items as Schema) }),
  }
}

function standardOf(schemas: Readonly<Record<string, Schema>>): object {
  return Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, standard(schema)]))
}
