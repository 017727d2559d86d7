/** Parses the text of a record, in JSON or YAML. Does not check the record itself. */

/** The endings of a record's file, in the order in which a directory is searched. */
export const RECORD_ENDINGS = ['.json', '.yaml', '.yml'] as const

export type Format = 'JSON' | 'YAML'

/** `message` may quote the text; `line` is where the fault is, if known. */
export type ParsedDocument =
  | { readonly ok: true; readonly value: unknown }
  | { readonly ok: false; readonly faults: readonly [{ readonly message: string; readonly line: number | undefined }] }

export function formatOf(name: string): Format {
  return name.endsWith('.json') ? 'JSON' : 'YAML'
}

/** Parses a text. Loads the YAML reader only when a text needs it. */
export async function parseDocument(text: string, format: Format): Promise<ParsedDocument> {
  const parse = format === 'JSON' ? parseJson : (await import('yaml')).parse
  try {
    return { ok: true, value: parse(text, { logLevel: 'error' }) }
  } catch (error) {
    const { message, linePos } = error as Error & { linePos?: readonly { readonly line: number }[] }
    return { ok: false, faults: [{ message: message.split('\n', 1)[0] ?? '', line: linePos?.[0]?.line }] }
  }
}

function parseJson(text: string): unknown {
  return JSON.parse(text)
}
