/** Schemas that several resources use. */
import Type, { type TNull, type TSchema, type TSchemaOptions, type TUnion } from 'typebox'

export function nullable<T extends TSchema>(schema: T, options: TSchemaOptions = {}): TUnion<[T, TNull]> {
  return Type.Union([schema, Type.Null()], options)
}

/** One of some texts. With its type, unlike Type.Enum, since the serializer of such a text is faster. */
// eslint-disable-next-line @typescript-eslint/explicit-module-boundary-types -- the type is the schema
export function enumOf<const T extends readonly string[]>(values: T) {
  return Type.Unsafe<T[number]>({ type: 'string', enum: [...values] })
}

export const NullableString = nullable(Type.String())
export const Time = Type.String({ format: 'date-time', description: 'UTC, such as 2026-11-20T15:04:05Z.' })
export const NullableTime = nullable(Time)
export const HostName = Type.String({ format: 'hostname' })
export const Ipv4 = Type.String({ format: 'ipv4' })
export const Ipv6 = Type.String({ format: 'ipv6' })
export const Megabytes = Type.Integer({ description: 'MB.' })
/** Of a client. */
export const Secret = nullable(Type.String(), { description: 'null, except in the response of reset_secret.' })

/** A name in a request. Some clients clear it with null. */
export const GivenName = nullable(Type.String({ maxLength: 255 }), {
  description: 'Null is the same as an empty text.',
})
export const GivenDescription = nullable(Type.String({ maxLength: 4096 }))
/** An id in a body, or where the description says so a handle. */
export const GivenId = Type.String({ minLength: 1 })

/** The texts that a request sets. Null clears one. */
export function givenTexts<Name extends string>(
  texts: Readonly<Partial<Record<Name, string | null | undefined>>>,
): Partial<Record<Name, string>> {
  const given = Object.entries<string | null | undefined>(texts).filter(([, text]) => text !== undefined)
  return Object.fromEntries(given.map(([name, text]) => [name, text ?? ''])) as Partial<Record<Name, string>>
}
