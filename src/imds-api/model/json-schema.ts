/** The parts of JSON schemas that this program reads itself. `hint` is a keyword of ours, and `hide` one of Fastify's. */
export interface JsonSchema {
  readonly type?: string
  readonly hint?: string
  readonly hide?: boolean
  readonly minimum?: number
  readonly maximum?: number
  readonly examples?: readonly unknown[]
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, JsonSchema>>
  readonly patternProperties?: Readonly<Record<string, unknown>>
  readonly additionalProperties?: unknown
  readonly items?: JsonSchema
  readonly anyOf?: readonly JsonSchema[]
}
