/**
 * Reads records for `put` and `validate`, one after the other: from files, from directories in the layout of the file
 * store, and from standard input. A file or standard input holds one record in JSON or YAML, or JSON lines: on each
 * line a record, or a record with its user-data.
 */
// small files take several times as long asynchronously
import { lstatSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { UserDataChange } from '../store/user-data.ts'
import { parseDocument, parseRecordWithUserData, RECORD_ENDINGS } from '../store/document.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { isJsonObject, parseJson } from '../runtime/json.ts'
import { decodeText, NotUtf8 } from '../runtime/text-file.ts'
import { readSettingFile } from '../runtime/regular-file.ts'
import { findDistrustOfDirectory } from '../runtime/trusted-path.ts'

/**
 * A record as read, not checked yet. `place`: a file or `FILE:LINE`; `-` is standard input. `userData` undefined: none
 * was given.
 */
export interface RecordInput {
  readonly place: string
  readonly document: unknown
  readonly userData: UserDataChange | undefined
}

/** One result of `readRecords`. The fault: the input cannot be read, or is no record. */
export type ReadRecord =
  | { readonly ok: true; readonly value: RecordInput }
  | { readonly ok: false; readonly faults: readonly [CommandFailure] }

export async function* readRecords(paths: readonly string[]): AsyncGenerator<ReadRecord> {
  for (const path of paths) {
    try {
      if (path === '-') yield* inputsOf(path, linesOf(process.stdin))
      else if (statSync(path).isDirectory()) yield* readDirectory(path)
      else yield* readText(path, readFileSync(path))
    } catch (error) {
      yield unreadable(path, error)
    }
  }
}

async function* readDirectory(directory: string): AsyncGenerator<ReadRecord> {
  const names = readdirSync(directory).sort()
  const records = Map.groupBy(
    names.filter((name) => stemOf(name) !== undefined && !name.startsWith('.')),
    (name) => stemOf(name) ?? '',
  )
  const files = new Set(names)
  // A link of another user may lead to a file that only root may read, and a guest would get it as user-data.
  const distrust = process.getuid?.() === 0 ? findDistrustOfDirectory(realpathSync(directory)) : undefined
  const readFile = (name: string) => readRegularFile(join(directory, name), distrust)
  for (const [stem, [name = '', ...others]] of records) {
    const path = join(directory, name)
    if (others.length > 0) {
      yield faulty(path, EXIT.badData, `has the same name as another record: ${others.join(', ')}`)
      continue
    }
    try {
      const userData = files.has(`${stem}.user-data`) ? readFile(`${stem}.user-data`) : undefined
      for await (const read of readText(path, readFile(name)))
        yield read.ok ? { ok: true, value: { ...read.value, userData: read.value.userData ?? userData } } : read
    } catch (error) {
      yield unreadable(path, error)
    }
  }
}

/** The name of a record's file without its ending; undefined for any other file. */
function stemOf(name: string): string | undefined {
  const ending = RECORD_ENDINGS.find((suffix) => name.endsWith(suffix))
  return ending === undefined ? undefined : name.slice(0, -ending.length)
}

/** Reads a file of a directory. `distrust`: why its symbolic links must not be followed. */
function readRegularFile(path: string, distrust: string | undefined): Buffer {
  if (distrust !== undefined && lstatSync(path).isSymbolicLink())
    throw new Error(`it is a symbolic link, and ${distrust}: put a copy of the file there`)
  return readSettingFile(path, distrust === undefined ? 'follow' : 'refuse')
}

/** Reads the records of a file. If the file has a single record, its place is the file, not a line of it. */
async function* readText(path: string, content: Buffer): AsyncGenerator<ReadRecord> {
  const text = decodeText(content)
  const isOne = !text.trim().includes('\n')
  if (isOne) yield parseOne(path, text)
  else yield* inputsOf(path, text.split('\n'))
}

/** Reads the records of a text: JSON lines if its first line is a complete JSON object, else one document. */
async function* inputsOf(path: string, lines: Iterable<string> | AsyncIterable<string>): AsyncGenerator<ReadRecord> {
  let text = ''
  let isJsonLines: boolean | undefined
  let number = 0
  for await (const line of lines) {
    number += 1
    if (isJsonLines !== true) text += `${line}\n`
    if (line.trim() === '') continue
    isJsonLines ??= isJsonObject(parseJson(line))
    if (!isJsonLines) continue
    const place = `${path}:${number}`
    if (line.trim() !== '---') yield inputOf(place, parseJson(line))
    else yield faulty(place, EXIT.badData, 'begins another YAML document: each needs a file of its own')
  }
  if (isJsonLines !== true) yield parseOne(path, text)
}

/** Splits a stream into lines. Node's readline also splits at U+2028, which JSON allows in a string. */
async function* linesOf(stream: NodeJS.ReadableStream): AsyncGenerator<string> {
  let parts: Buffer[] = []
  let start = 0
  const line = () => {
    const bytes = Buffer.concat(parts)
    const text = decodeText(bytes, start)
    start += bytes.length + 1
    parts = []
    return text
  }
  for await (let chunk of stream as AsyncIterable<Buffer>) {
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10)) {
      parts.push(chunk.subarray(0, end))
      yield line()
      chunk = chunk.subarray(end + 1)
    }
    parts.push(chunk)
  }
  const last = line()
  if (last !== '') yield last
}

/** JSON or YAML. Every JSON document is YAML too, but the messages of the JSON parser are better. */
async function parseOne(place: string, text: string): Promise<ReadRecord> {
  const parsed = await parseDocument(text, text.startsWith('{') ? 'JSON' : 'YAML')
  if (parsed.ok) return inputOf(place, parsed.value)
  const [{ cause, message, line }] = parsed.faults
  const what = cause === undefined ? 'is neither JSON nor YAML' : 'cannot be read'
  return faulty(place, EXIT.badData, `${what}: ${line === undefined ? '' : `line ${line}: `}${message}`)
}

function inputOf(place: string, value: unknown): ReadRecord {
  if (value === undefined) return faulty(place, EXIT.badData, 'is not JSON')
  const parsed = parseRecordWithUserData(value)
  return parsed.ok ? { ok: true, value: { place, ...parsed.value } } : faulty(place, EXIT.badData, parsed.faults.join())
}

function unreadable(path: string, error: unknown): ReadRecord {
  return faulty(
    path,
    error instanceof NotUtf8 ? EXIT.badData : EXIT.noInput,
    `cannot be read: ${(error as Error).message}`,
  )
}

function faulty(place: string, status: number, message: string): ReadRecord {
  return { ok: false, faults: [new CommandFailure(status, `${place} ${message}`, { place })] }
}
