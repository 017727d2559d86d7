/** Parses a record, in JSON or YAML. Does not check the record itself. */
import { decodeText, NotUtf8 } from '../runtime/text-file.ts'

/** The endings of a record's file, in the order in which a directory is searched. */
export const RECORD_ENDINGS = ['.json', '.yaml', '.yml'] as const

export type Format = 'JSON' | 'YAML'

/** `message` may quote the text, unless it is the `cause` that we know; `line` is where the fault is, if known. */
export interface DocumentFault {
  readonly message: string
  readonly cause?: string
  readonly line: number | undefined
}

export type ParsedDocument =
  | { readonly ok: true; readonly value: unknown }
  | { readonly ok: false; readonly faults: readonly [DocumentFault] }

export function formatOf(name: string): Format {
  return name.endsWith('.json') ? 'JSON' : 'YAML'
}

/** Loads the YAML reader. A program that runs on calls it at its start, since an upgrade may replace the file. */
export function loadYaml(): Promise<typeof import('yaml')> {
  return import('yaml')
}

/** Parses a text, or its bytes. Loads the YAML reader only when a text needs it. */
export async function parseDocument(content: string | Uint8Array, format: Format): Promise<ParsedDocument> {
  const parse = format === 'JSON' ? (json: string) => JSON.parse(json) as unknown : (await loadYaml()).parse
  try {
    const text = typeof content === 'string' ? content : decodeText(content)
    return { ok: true, value: parse(text, { logLevel: 'error' }) }
  } catch (error) {
    const { message, code, linePos } = error as Error & { code?: string; linePos?: readonly { line: number }[] }
    const cause =
      error instanceof NotUtf8
        ? message
        : code === 'MULTIPLE_DOCS'
          ? 'it has several YAML documents: each needs a file of its own'
          : undefined
    if (cause !== undefined) return { ok: false, faults: [{ message: cause, cause, line: undefined }] }
    return { ok: false, faults: [{ message: message.split('\n', 1)[0] ?? '', line: linePos?.[0]?.line }] }
  }
}
