/**
 * The host's own key of session tokens, for where the operator gives none.
 *
 * It is made at the first start and kept in the state directory, so that tokens survive a restart. Where it cannot be kept, guests are
 * answered all the same and fetch new tokens after a restart.
 */
import { randomBytes } from 'node:crypto'
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Logger } from 'pino'
import { KEY_BYTES, parseTokenKeys } from './token.ts'

/** Reads this host's own key, or makes one. The state directory is made, mode 0700, where it is missing. */
export function ownTokenKey(stateDirectory: string, log: Logger): Uint8Array {
  const path = join(stateDirectory, 'token-key')
  const key = randomBytes(KEY_BYTES)
  try {
    mkdirSync(stateDirectory, { recursive: true, mode: 0o700 })
    const kept = readKey(path, log)
    if (kept !== undefined) return kept
    const draft = `${path}.${String(process.pid)}`
    try {
      writeFileSync(draft, `${key.toString('base64')}\n`, { mode: 0o600, flush: true })
      linkSync(draft, path) // whole or not at all, and never over another's
    } finally {
      rmSync(draft, { force: true })
    }
  } catch (error) {
    log.warn({ path, reason: (error as Error).message }, 'the key of session tokens cannot be read or kept: after a restart guests must fetch new tokens')
  }
  return key
}

/** Undefined where there is no key yet, or where a faulty one was removed. */
function readKey(path: string, log: Logger): Uint8Array | undefined {
  let text: string
  try {
    text = readFileSync(path, 'latin1')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
  const kept = parseTokenKeys(text)
  if (kept.ok) return kept.value[0]!
  log.warn({ path }, 'the key of session tokens is not readable: a new one takes its place, and guests must fetch new tokens')
  rmSync(path)
  return undefined
}
