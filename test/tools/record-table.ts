/**
 * Generates the table of a record's fields in docs/record.md from the schema.
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

/** A Markdown table with one row per field. */
export function recordTable(): string {
  const rows: string[] = []
  const visit = (schema: Schema, path: string) => {
    for (const [name, field] of Object.entries(schema.properties ?? {})) {
      const here = `${path}${name}`
      const inner = field.items ?? field
      const isNeeded = schema.required?.includes(name) === true && field.default === undefined
      const fallback =
        field.default === undefined ? (isNeeded ? 'required' : 'none') : `\`${JSON.stringify(field.default)}\``
      rows.push(`| \`${here}${field.items ? '[]' : ''}\` | ${meaning(field)} | ${form(field)} | ${fallback} |`)
      visit(inner, `${here}${field.items ? '[]' : ''}.`)
    }
  }
  visit(InstanceSchema as Schema, '')
  return ['<!-- prettier-ignore -->', '| field | meaning | form | default |', '|---|---|---|---|', ...rows].join('\n')
}

function meaning({ description, items }: Schema): string {
  return (description ?? items?.description ?? '').replaceAll('|', '\\|')
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
  return [text, bounds(schema)]
    .filter((part) => part !== '')
    .join('; ')
    .replaceAll('|', '\\|')
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
