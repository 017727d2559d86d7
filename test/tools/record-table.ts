/**
 * Generates the list of a record's fields in docs/record.md from the schema.
 */
import { InstanceSchema } from '../../src/metadata/schema.ts'

interface Schema {
  readonly type?: string
  readonly hint?: string
  readonly description?: string
  readonly default?: unknown
  readonly minimum?: number
  readonly maximum?: number
  readonly properties?: Readonly<Record<string, Schema>>
  readonly required?: readonly string[]
  readonly items?: Schema
  readonly maxItems?: number
  readonly maxProperties?: number
  readonly propertyNames?: { readonly maxLength: number }
  readonly patternProperties?: Readonly<Record<string, { readonly maxLength?: number }>>
}

/** A Markdown list with one item per field. What an id is, is said once. */
export function recordTable(): string {
  const items: string[] = []
  const explained = new Set<string>()
  const visit = (schema: Schema, path: string) => {
    for (const [name, field] of Object.entries(schema.properties ?? {})) {
      const here = `${path}${name}`
      const inner = field.items ?? field
      const isNeeded = schema.required?.includes(name) === true && field.default === undefined
      const fallback =
        field.default === undefined ? (isNeeded ? 'required' : 'none') : `\`${JSON.stringify(field.default)}\``
      const [kind = '', ...rest] = form(field).split(': ')
      const text = explained.has(kind) || rest.length === 0 ? kind : `${kind}: ${rest.join(': ')}`
      explained.add(kind)
      const sentences = [field.description ?? field.items?.description, text && `Form: ${text}`].filter((part) => part)
      items.push(`- \`${here}${field.items ? '[]' : ''}\` (${fallback}): ${sentences.join(' ')}`)
      visit(inner, `${here}${field.items ? '[]' : ''}.`)
    }
  }
  visit(InstanceSchema as Schema, '')
  return items.join('\n')
}

function form(schema: Schema): string {
  const { type, hint, items, minimum, maximum } = schema
  const range =
    minimum === undefined
      ? ''
      : maximum === undefined || maximum >= Number.MAX_SAFE_INTEGER
        ? `, at least ${String(minimum)}`
        : `, ${String(minimum)} to ${String(maximum)}`
  const text =
    hint ?? items?.hint ?? (type === 'integer' ? `a whole number${range}` : type === 'boolean' ? 'true or false' : '')
  return [text, bounds(schema)].filter((part) => part !== '').join('; ')
}

function bounds({ maxItems, maxProperties, propertyNames, patternProperties }: Schema): string {
  const most = maxItems ?? maxProperties
  const { maxLength } = Object.values(patternProperties ?? {})[0] ?? {}
  const texts =
    propertyNames === undefined || maxLength === undefined
      ? ''
      : `, with keys of at most ${String(propertyNames.maxLength)} and values of at most ${String(maxLength)} characters`
  return most === undefined ? '' : `at most ${String(most)}${texts}`
}
