/** The faults of a request that does not have the form of its schema: sentences, with their fields and codes. */
import type { FastifyError } from 'fastify'
import { FORMATS } from '../model/formats.ts'
import type { JsonSchema } from '../model/json-schema.ts'
import { fieldFault, type Detail, type DetailCode } from '../model/refusal.ts'
import { STORABLE, STORABLE_FAULT } from '../model/storable-text.ts'

/** A fault as Ajv reports it with its option `verbose`. `propertyName`: it is a fault of this key. */
export type FormFault = NonNullable<FastifyError['validation']>[number] & {
  readonly parentSchema?: JsonSchema
  readonly propertyName?: string
}

/**
 * The faults of a value that has another type or is not one of the allowed values. All other faults are of a value with
 * the right type.
 */
const VALUE_KEYWORDS = ['type', 'const', 'enum']
/**
 * The most faults that are formatted. A body within its limits can have tens of thousands, which would block other
 * requests.
 */
const MAX_FAULTS = 1_000

/**
 * The first faults, one for each field: `port_translators.0.incoming must be an integer or a string`. For a union, the
 * fault names the alternatives; if the value has the type of one of them, it says what is wrong with the value.
 * `formatWhole`: for a fault of the whole value, by default of a body.
 */
export function formatFaults(all: readonly FormFault[], formatWhole = formatBody): Detail[] {
  const validation = all.slice(0, MAX_FAULTS)
  const byField = new Map<string, FormFault[]>()
  // those with a fault inside: their values have the right type
  const parents = new Set(validation.map((fault) => namesOf(fault).slice(0, -1).join('/')))
  for (const fault of validation) {
    if (['anyOf', 'propertyNames'].includes(fault.keyword)) continue // its parts have faults of their own
    const names = namesOf(fault)
    if (fault.keyword === 'type' && names.length > 0 && parents.has(names.join('/'))) continue
    const field = names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~')).join('.')
    const faults = byField.get(field)
    if (faults === undefined) byField.set(field, [fault])
    else faults.push(fault)
  }
  return [...byField].map(([field, faults]) => {
    const text = formatField(faults)
    return field === ''
      ? fieldFault(undefined, codeOf(faults), formatWhole(text))
      : fieldFault(field, codeOf(faults), `${field} ${text}`)
  })
}

function formatBody(text: string): string {
  return `the body ${text.replace('an object', 'a JSON object')}`
}

/** The code of a fault by its keyword. Any other keyword is about the form of a text. */
const CODES: Readonly<Record<string, DetailCode>> = {
  type: 'wrong_type',
  const: 'not_allowed',
  enum: 'not_allowed',
  required: 'missing',
  minLength: 'too_short',
  minItems: 'too_short',
  maxLength: 'too_long',
  maxItems: 'too_long',
  maxProperties: 'too_long',
  minimum: 'out_of_range',
  maximum: 'out_of_range',
  exclusiveMinimum: 'out_of_range',
  exclusiveMaximum: 'out_of_range',
  multipleOf: 'out_of_range',
}

/** The code of the faults of one field: of a limit, of the allowed values, or of the type. */
function codeOf(faults: readonly FormFault[]): DetailCode {
  const { keyword } =
    faults.find((fault) => !VALUE_KEYWORDS.includes(fault.keyword)) ??
    faults.find((fault) => fault.keyword !== 'type') ??
    faults[0]!
  return CODES[keyword] ?? 'malformed'
}

/** The keys on the way to a field, as JSON Pointer has them. */
function namesOf({ instancePath, params }: FormFault): string[] {
  const field = params['missingProperty'] ?? params['additionalProperty']
  return [...instancePath.split('/').slice(1), ...(typeof field === 'string' ? [field] : [])]
}

function formatField(faults: readonly FormFault[]): string {
  const limits = faults.filter(({ keyword }) => !VALUE_KEYWORDS.includes(keyword))
  if (limits.length > 0) return [...new Set(limits.map(formatFault))].join(' and ')
  // their values make the type clear
  const withValues = faults.filter(({ keyword }) => keyword !== 'type').map(({ parentSchema }) => parentSchema)
  const values = faults.filter(({ keyword, parentSchema }) => keyword !== 'type' || !withValues.includes(parentSchema))
  return [...new Set(values.map(formatFault))].join(' or ').replaceAll(' or must be ', ' or ')
}

const TYPES: Readonly<Record<string, string>> = {
  string: 'a string',
  integer: 'an integer',
  number: 'a number',
  boolean: 'a boolean',
  object: 'an object',
  array: 'an array',
  null: 'null',
}

function formatFault(fault: FormFault): string {
  const text = formatRule(fault)
  return fault.propertyName === undefined ? text : `has a key that ${text}`
}

function formatRule({ keyword, message = '', params, parentSchema = {} }: FormFault): string {
  const { hint, minimum, maximum } = parentSchema
  const limit = String(params['limit'])
  switch (keyword) {
    case 'type':
      return `must be ${TYPES[String(params['type'])]!}`
    case 'const':
      return `must be ${JSON.stringify(params['allowedValue'])}`
    case 'enum': {
      const allowed = params['allowedValues'] as readonly unknown[]
      return `must be ${allowed.map((value) => JSON.stringify(value)).join(' or ')}`
    }
    case 'required':
      return 'is missing'
    case 'additionalProperties':
      return 'is not a known field'
    case STORABLE:
      return STORABLE_FAULT
    case 'format':
      return FORMATS[String(params['format'])]?.fault ?? message
    case 'pattern':
      return hint === undefined ? 'has the wrong form' : `must be ${hint}`
    case 'minLength':
      return limit === '1' ? 'must not be empty' : `must have at least ${limit} characters`
    case 'maxLength':
      return `must have at most ${limit} characters`
    case 'minItems':
      return limit === '1' ? 'must not be empty' : `must have at least ${limit} elements`
    case 'maxItems':
      return `must have at most ${limit} elements`
    case 'maxProperties':
      return `must have at most ${limit} keys`
    case 'minimum':
      return maximum === undefined ? `must be at least ${limit}` : `must be from ${limit} to ${maximum}`
    case 'maximum':
      return minimum === undefined ? `must be at most ${limit}` : `must be from ${minimum} to ${limit}`
    default:
      return message
  }
}
