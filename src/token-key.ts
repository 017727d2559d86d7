/**
 * Which key are session tokens made with, where the operator gave none?
 *
 * One that this host made for itself and keeps in its state directory, so that tokens survive a restart. A key that cannot be kept costs
 * guests one more PUT after a restart, and no answer.
 */
import { randomBytes } from 'node:crypto'
import { linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Logger } from 'pino'
import { KEY_BYTES, parseTokenKeys } from './guest/token.ts'

/** This host's own key, read or made. */
export function ownTokenKey(stateDirectory: string, log: Logger): Uint8Array {
  const path = join(stateDirectory, 'token-key')
  try {
    const kept = parseTokenKeys(readFileSync(path, 'latin1'))
    if (kept.ok) return kept.keys[0]!
    log.warn({ path }, 'the key of session tokens is not readable: a new one takes its place, and guests must fetch new tokens')
    rmSync(path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') log.warn({ path, err: error }, 'the key of session tokens cannot be read')
  }
  const key = randomBytes(KEY_BYTES)
  const draft = `${path}.${String(process.pid)}`
  try {
    writeFileSync(draft, `${key.toString('base64')}\n`, { mode: 0o600, flush: true })
    linkSync(draft, path) // whole or not at all, and never over another's
  } catch (error) {
    log.warn({ path, err: error }, 'the key of session tokens cannot be kept: after a restart guests must fetch new tokens')
  }
  rmSync(draft, { force: true })
  return key
}
