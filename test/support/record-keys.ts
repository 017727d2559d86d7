/** Files of record keys for tests: each name has its own key, the same in every test. */
import { createHash } from 'node:crypto'
import { parseRecordKeys, RecordCipher } from '../../src/store/crypto/record-cipher.ts'

/** The lines of a file with these keys, the first of which encrypts. */
export function keyLines(...names: readonly string[]): string {
  return names.map((name) => `${name}:${createHash('sha256').update(`a key for tests, ${name}`).digest('base64')}\n`).join('')
}

/** What encrypts and decrypts a region's values with these keys. */
export function aCipher(region: string, ...names: readonly string[]): RecordCipher {
  const parsed = parseRecordKeys(keyLines(...names))
  if (!parsed.ok) throw new Error(parsed.message)
  return new RecordCipher(parsed.keys, region)
}
