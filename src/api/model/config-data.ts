/** The data of a config map: an object, kept as the text that was sent, without white space. */
import { compactJson, memberText } from './json-text.ts'

/** The interface's limit of data, in bytes of UTF-8. It is for the text that is stored. */
export const DATA_MAX_BYTES = 1_048_576
/** The limit of a request's body: clients may send each byte of data as an escape of six bytes, such as \u0061. The seventh part is room for the name. */
export const BODY_MAX_BYTES = 7 * DATA_MAX_BYTES
/** Ruby's parser, which the CLI uses, reads 100 levels. The object of the response around `data` is one of them. */
const MOST_LEVELS = 99

/** Data to store, or what is wrong with it. */
export type ParsedData = { readonly ok: true, readonly text: string } | { readonly ok: false, readonly fault: string }

/** Takes the data out of the text of a request's body, which must be JSON that has `data`. */
export function parseData(body: string): ParsedData {
  const { text, levels } = compactJson(memberText(body, 'data')!)
  if (levels > MOST_LEVELS) return { ok: false, fault: `data must have at most ${String(MOST_LEVELS)} levels of objects and arrays; it has ${String(levels)}` }
  const bytes = Buffer.byteLength(text)
  return bytes > DATA_MAX_BYTES ? { ok: false, fault: `data must be at most ${String(DATA_MAX_BYTES)} bytes; it is ${String(bytes)}` } : { ok: true, text }
}
