/**
 * Parses JSON that another program or a user wrote. Undefined: it is no JSON. The error of JSON.parse is not used,
 * because it quotes the text, which may have a password or user-data.
 */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Whether a value is an object of JSON: neither a list nor null. */
export function isJsonObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return value instanceof Object && !Array.isArray(value)
}
