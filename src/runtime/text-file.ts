/** Text files are UTF-8. What is not would lose characters without a word. */
import { isUtf8 } from 'node:buffer'
import { readSettingFile } from './regular-file.ts'

const REPLACEMENT = Buffer.from('\ufffd')

/** Bytes that are not UTF-8. The message is a sentence about the file, which the caller names. */
export class NotUtf8 extends Error {}

/**
 * The text of bytes, without a byte order mark. Throws NotUtf8, which names the first wrong byte. `start`: the position
 * of the bytes in their file.
 */
export function decodeText(bytes: Uint8Array, start = 0): string {
  const [first, second] = bytes
  const isUtf16 = second !== undefined && (first! + second === 0xff + 0xfe || first === 0 || second === 0)
  if (isUtf16) throw new NotUtf8('it is not UTF-8, but seems to be UTF-16: convert it to UTF-8')
  if (!isUtf8(bytes)) {
    const offset = start + wrongByte(Buffer.from(bytes))
    throw new NotUtf8(`it is not UTF-8: the byte at offset ${offset} is wrong`)
  }
  return new TextDecoder().decode(bytes)
}

/** Reads a text file. Throws as readSettingFile and `decodeText`. */
export function readTextFile(path: string): string {
  return decodeText(readSettingFile(path))
}

/** The position of the first byte that is not UTF-8, of bytes that have one. */
function wrongByte(bytes: Buffer): number {
  let position = 0
  for (const text of bytes.toString().split('\ufffd')) {
    position += Buffer.byteLength(text)
    if (!bytes.subarray(position, position + REPLACEMENT.length).equals(REPLACEMENT)) break
    position += REPLACEMENT.length
  }
  return position
}
