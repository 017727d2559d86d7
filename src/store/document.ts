/** Parses a record, in JSON or YAML, alone or with its user-data. Does not check the record itself. */
import type { Parsed } from '../metadata/parsed.ts'
import { isJsonObject } from '../runtime/json.ts'
import { decodeText, NotUtf8 } from '../runtime/text-file.ts'
import type { UserDataChange } from './user-data.ts'

/** The endings of a record's file, in the order in which a directory is searched. */
export const RECORD_ENDINGS = ['.json', '.yaml', '.yml'] as const

export type Format = 'JSON' | 'YAML'

/**
 * `message` is one line, and may quote the text, of which `cause` has nothing; `cause` is there for the faults that we
 * know. `line` is where the fault is, if known.
 */
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

/** Faults that are not of YAML itself, by the code of the YAML reader. */
const YAML_CAUSES: ReadonlyMap<string | undefined, string> = new Map([
  ['MULTIPLE_DOCS', 'it has several YAML documents: each needs a file of its own'],
  ['TAG_RESOLVE_FAILED', 'it has a YAML tag that nothing resolves'],
])

/** Parses a text, or its bytes. Loads the YAML reader only when a text needs it. */
export async function parseDocument(content: string | Uint8Array, format: Format): Promise<ParsedDocument> {
  const parse = format === 'JSON' ? (json: string) => JSON.parse(json) as unknown : await yamlParser()
  try {
    return { ok: true, value: parse(typeof content === 'string' ? content : decodeText(content)) }
  } catch (error) {
    const { message, code, linePos } = error as Error & { code?: string; linePos?: readonly { line: number }[] }
    const line = linePos?.[0]?.line
    const cause = error instanceof NotUtf8 ? message : YAML_CAUSES.get(code)
    const first = (code === 'MULTIPLE_DOCS' ? cause! : message).split('\n', 1)[0]!.replace(/ at line .*/, '')
    return { ok: false, faults: [{ message: first, ...(cause !== undefined && { cause }), line }] }
  }
}

/**
 * YAML 1.2 with merge keys (`<<`). A warning is a fault, since the text does not say what its writer meant: so are all
 * tags but those of JSON's types.
 */
async function yamlParser(): Promise<(text: string) => unknown> {
  const yaml = await loadYaml()
  return (text) => {
    const document = yaml.parseDocument(text, {
      schema: 'core',
      merge: true,
      resolveKnownTags: false,
      logLevel: 'error',
    })
    const [fault] = [...document.errors, ...document.warnings]
    if (fault !== undefined) throw fault
    return document.toJS() as unknown
  }
}

/** A record, and its user-data if it came with it. */
export interface RecordWithUserData {
  readonly document: unknown
  readonly userData: UserDataChange | undefined
}

/**
 * Parses a record, or `{"record": RECORD, "userDataBase64": BASE64}` (null: the instance has no user-data). A fault
 * continues the name of the value.
 */
export function parseRecordWithUserData(value: unknown): Parsed<RecordWithUserData, string> {
  if (!isJsonObject(value) || !('record' in value)) return { ok: true, value: { document: value, userData: undefined } }
  const { record: document, userDataBase64: base64, ...others } = value
  const [other] = Object.keys(others)
  if (other !== undefined)
    return { ok: false, faults: [`has a field other than "record" and "userDataBase64": "${other}"`] }
  if (base64 === undefined || base64 === null)
    return { ok: true, value: { document, userData: base64 === null ? 'none' : undefined } }
  const bytes = Buffer.from(typeof base64 === 'string' ? base64 : '', 'base64')
  return bytes.toString('base64') === base64
    ? { ok: true, value: { document, userData: bytes } }
    : { ok: false, faults: ['has a "userDataBase64" that is neither base64 with padding nor null'] }
}

/** Formats a record with its user-data (undefined: none) as `parseRecordWithUserData` reads it. */
export function formatRecordWithUserData(document: unknown, userData: Uint8Array | undefined): string {
  const userDataBase64 = userData === undefined ? null : Buffer.from(userData).toString('base64')
  return formatRecord({ record: document, userDataBase64 })
}

/** Formats a record as people read it in a file. */
export function formatRecord(document: unknown): string {
  return `${JSON.stringify(document, undefined, 2)}\n`
}
