/** Parses a region file. */
import { Compile } from 'typebox/compile'
import { Format } from 'typebox/format'
import { Settings } from 'typebox/system'
import type { Parsed } from '../../metadata/parsed.ts'
import { parseDocument } from '../../store/document.ts'
import { FORMATS } from '../model/formats.ts'
import { findContradictions } from './contradictions.ts'
import { RegionSchema, type RegionFile } from './schema.ts'

for (const [name, { isValid }] of Object.entries(FORMATS)) Format.Set(name, isValid)
Settings.Set({ maxErrors: 1000 }) // without it the library stops at 8
const CHECK = Compile(RegionSchema)

/**
 * Parses a region file. Reports every fault of the form of its entries at once, and if there is none, all others: ids
 * given twice, names that do not exist.
 */
export async function parseRegion(content: string | Uint8Array): Promise<Parsed<RegionFile, string>> {
  const document = await parseDocument(content, 'YAML')
  if (!document.ok)
    return {
      ok: false,
      faults: document.faults.map(({ message, line }) => (line === undefined ? message : `line ${line}: ${message}`)),
    }
  const { value } = document
  if (!CHECK.Check(value)) return { ok: false, faults: formFaults(value) }
  const faults = findContradictions(value)
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}

/** The faults of the form: one a place, the alternatives of a union joined by "or". */
function formFaults(value: unknown): string[] {
  const messages = new Map<string, string[]>()
  for (const { instancePath, keyword, params, message } of CHECK.Errors(value) as FormError[]) {
    const fields = [...(params.requiredProperties ?? []), ...(params.additionalProperties ?? [])]
    if (keyword === 'anyOf' || keyword === 'boolean') continue // what it consists of is a fault too
    for (const field of fields.length === 0 ? [''] : fields) {
      const place = `${instancePath}/${field}`
        .split('/')
        .filter((part) => part !== '')
        .map((part) => part.replaceAll('~1', '/')) // of a JSON pointer
        .join('.')
      messages.set(place, [...(messages.get(place) ?? []), formFault(keyword, params) ?? message])
    }
  }
  return [...messages].map(
    ([place, list]) => `${place === '' ? 'the file' : place} ${list.join(' or ').replaceAll(' or must be ', ' or ')}`,
  )
}

/** An error of the library, with the parameters that its keywords have. */
interface FormError {
  readonly instancePath: string
  readonly keyword: string
  readonly message: string
  readonly params: Readonly<Partial<Record<'requiredProperties' | 'additionalProperties', readonly string[]>>> & {
    readonly allowedValues?: readonly unknown[]
    readonly allowedValue?: unknown
    readonly format?: string
  }
}

function formFault(
  keyword: string,
  { allowedValues, allowedValue, format = '' }: FormError['params'],
): string | undefined {
  switch (keyword) {
    case 'required':
      return 'is missing'
    case 'additionalProperties':
      return 'is not a known field'
    case 'const':
      return `must be ${JSON.stringify(allowedValue)}`
    case 'enum':
      return `must be ${allowedValues!.map((value) => JSON.stringify(value)).join(' or ')}`
    case 'format':
      return FORMATS[format]?.fault
    default:
      return undefined
  }
}
