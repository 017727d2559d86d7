/**
 * Checks text in requests: PostgreSQL cannot store U+0000, and half of a surrogate pair would become another character.
 * The check is a keyword for Ajv, which is added to each string of a schema before the schema is compiled. Tags and
 * data of config maps do not have it, because PostgreSQL's JSON can store both.
 */
import type { JsonSchema } from './json-schema.ts'

/** The keyword, and the text of its fault. */
export const STORABLE = 'storable'
export const STORABLE_FAULT = 'must not contain the character U+0000 or half of a surrogate pair'
/** The definition of the keyword, for Ajv. */
export const STORABLE_KEYWORD = {
  keyword: STORABLE,
  type: 'string',
  validate: (_on: boolean, text: string) => text.isWellFormed() && !text.includes('\0'),
} as const

/** A copy of a schema in which each string that the schema describes has the keyword. */
export function withStorableText(schema: JsonSchema): JsonSchema {
  return {
    ...schema,
    ...(schema.type === 'string' && { [STORABLE]: true }),
    ...(schema.properties !== undefined && {
      properties: Object.fromEntries(
        Object.entries(schema.properties).map(([name, property]) => [name, withStorableText(property)]),
      ),
    }),
    ...(schema.items !== undefined && { items: withStorableText(schema.items) }),
    ...(schema.anyOf !== undefined && { anyOf: schema.anyOf.map(withStorableText) }),
  }
}
