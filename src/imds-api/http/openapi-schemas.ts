/**
 * The schemas of the OpenAPI document. A schema with a title becomes a component with this name, to which every place
 * that uses it refers. What only this program understands is left out.
 */

export type Schema = Readonly<Record<string, unknown>>

/** Keywords that JSON Schema does not have. */
const OWN_KEYWORDS = ['hint']
/** The standard formats that ours (model/formats.ts) are kinds of. */
const STANDARD_FORMATS: Readonly<Record<string, string>> = { timestamp: 'date-time' }
/** Keywords whose value is a schema, a list of schemas, or schemas by name. */
const OF_ONE = ['items', 'additionalProperties', 'propertyNames']
const OF_MANY = ['anyOf', 'allOf', 'oneOf']
const BY_NAME = ['properties', 'patternProperties']

/** Collects the components of one document. */
export class Components {
  readonly #schemas = new Map<string, Schema>()

  /** The components until now, sorted by name. */
  get schemas(): Readonly<Record<string, Schema>> {
    return Object.fromEntries([...this.#schemas].sort(([a], [b]) => (a < b ? -1 : 1)))
  }

  /** A schema as the document has it. Throws if another one has its title. */
  refer(schema: Schema): Schema {
    const described = this.#describe(schema)
    const { title } = described
    if (typeof title !== 'string') return described
    const known = this.#schemas.get(title)
    if (known !== undefined && JSON.stringify(known) !== JSON.stringify(described))
      throw new Error(`two schemas have the title ${title}: ${JSON.stringify([known, described])}`)
    this.#schemas.set(title, described)
    return { $ref: `#/components/schemas/${title}` }
  }

  #describe(schema: Schema): Schema {
    const entries = Object.entries(schema).filter(([keyword]) => !OWN_KEYWORDS.includes(keyword))
    const described = Object.fromEntries(entries.map(([keyword, value]) => [keyword, this.#below(keyword, value)]))
    return asEnum(described)
  }

  #below(keyword: string, value: unknown): unknown {
    if (keyword === 'format') return STANDARD_FORMATS[String(value)] ?? value
    if (typeof value !== 'object' || value === null) return value
    if (OF_ONE.includes(keyword)) return this.refer(value as Schema)
    if (OF_MANY.includes(keyword)) return (value as readonly Schema[]).map((one) => this.refer(one))
    if (BY_NAME.includes(keyword))
      return Object.fromEntries(Object.entries(value as Schema).map(([name, one]) => [name, this.refer(one as Schema)]))
    return value
  }
}

/** The same values as `enum` with a type, if the schema is a list of texts: generators make better types of it. */
function asEnum({ anyOf, ...others }: Schema): Schema {
  const texts = (anyOf as readonly Schema[] | undefined)?.map((one) => one['const'])
  if (texts?.every((text) => typeof text === 'string') === true) return { type: 'string', ...others, enum: texts }
  const { enum: values, type } = others
  return {
    ...(type === undefined && Array.isArray(values) && { type: 'string' }),
    ...others,
    ...(anyOf !== undefined && { anyOf }),
  }
}
