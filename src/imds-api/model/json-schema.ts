/** The parts of JSON schemas that this program reads itself. `hint` is a keyword of ours. */
export interface JsonSchema {
  readonly type?: string
  readonly hint?: string
  readonly minimum?: number
  readonly maximum?: number
  readonly properties?: Readonly<Record<string, JsonSchema>>
  readonly items?: JsonSchema
  readonly anyOf?: readonly JsonSchema[]
}
