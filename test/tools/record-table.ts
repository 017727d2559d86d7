/** Generates the list of a record's fields in docs/record.md from the schema. */
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

/** The length from which a form is written out only once. */
const LONG_FORM = 40

/**
 * A Markdown list with an item for each field, and below it those of an object. A long form is written out at the first
 * field that has it, and so is what an id is.
 */
export function recordTable(): string {
  const items: string[] = []
  const explained = new Map<string, string>()
  const visit = (schema: Schema, path: string, indent: string) => {
    for (const [name, field] of Object.entries(schema.properties ?? {})) {
      const isRequired = schema.required?.includes(name) === true && field.default === undefined
      const about = shorten(form(field), `${path}${name}`, explained)
      const facts = [about, bounds(field), isRequired ? '' : fallback(field.default)]
      const list = facts.filter((fact) => fact !== '').join('; ')
      const description = field.description ?? field.items?.description ?? ''
      const text = description === 'Its id.' ? '' : `: ${description}`
      items.push(`${indent}- \`${name}${field.items ? '[]' : ''}\`${list === '' ? '' : ` (${list})`}${text}`)
      visit(field.items ?? field, `${path}${name}.`, `${indent}  `)
    }
  }
  visit(InstanceSchema as Schema, '', '')
  return items.join('\n')
}

function fallback(value: unknown): string {
  const text = JSON.stringify(value ?? [])
  return ['[]', '{}'].includes(text) ? 'optional' : `default ${text}`
}

/** `explained`: the first field of each form that is long, or has a name, which a colon ends. */
function shorten(text: string, path: string, explained: Map<string, string>): string {
  const [name = ''] = text.split(': ')
  const first = explained.get(name)
  if (first !== undefined) return name === text ? `as \`${first}\`` : name
  if (name !== text || text.length > LONG_FORM) explained.set(name, path)
  return text
}

function form(schema: Schema): string {
  const { type, hint, items, minimum, maximum } = schema
  const range =
    minimum === undefined
      ? ''
      : maximum === undefined || maximum >= Number.MAX_SAFE_INTEGER
        ? `, at least ${minimum}`
        : `, ${minimum} to ${maximum}`
  return (
    hint ?? items?.hint ?? (type === 'integer' ? `a whole number${range}` : type === 'boolean' ? 'true or false' : '')
  )
}

function bounds({ maxItems, maxProperties, propertyNames, patternProperties }: Schema): string {
  const most = maxItems ?? maxProperties
  const { maxLength } = Object.values(patternProperties ?? {})[0] ?? {}
  const texts =
    propertyNames === undefined || maxLength === undefined
      ? ''
      : `, with keys of at most ${propertyNames.maxLength} and values of at most ${maxLength} characters`
  return most === undefined ? '' : `at most ${most}${texts}`
}
