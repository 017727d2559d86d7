/** The texts of a record: schemas with their rule in words, `hint`, which messages show. */
import Type, { type TEnum, type TString } from 'typebox'
import { ID, ID_RULE } from './identifiers.ts'
import { TIME, MAX_TIME_CHARACTERS, TIME_RULE } from './time.ts'

const LABEL = '[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?'

export function text(
  hint: string,
  options: { pattern?: string; maxLength?: number; format?: string; default?: string; description?: string },
): TString {
  return Type.String({ ...options, hint })
}

export function time(description: string): TString {
  return text(TIME_RULE, { pattern: TIME, maxLength: MAX_TIME_CHARACTERS, description })
}

export function id(description: string): TString {
  return text(ID_RULE, { pattern: ID, description })
}

const FQDN_RULE =
  'a domain name of at most 253 characters, of letters, digits and hyphens (no underscore), without a final dot, ' +
  'in labels of at most 63 characters, the last of which is not a number'

export function fqdn(description: string): TString {
  return text(FQDN_RULE, {
    pattern: `^(?=.{1,253}$)(${LABEL}\\.)*(?!\\d+$)${LABEL}$`,
    maxLength: 253,
    description,
  })
}

export function choice<T extends string[]>(
  values: readonly [...T],
  fallback: T[number],
  description: string,
): TEnum<T> {
  return Type.Enum<T>(values, { default: fallback, hint: `one of ${values.join(', ')}`, description })
}
