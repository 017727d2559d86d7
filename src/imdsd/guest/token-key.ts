/**
 * The hypervisor's own key for session tokens, used if the operator configures none.
 *
 * It is created at the first start and saved in the state directory, so that tokens survive a restart. If it cannot be
 * saved, the daemon runs nevertheless, and guests must fetch new tokens after a restart. Without record keys the
 * journal's MACs are made with this key as well, so the journal is not served then.
 */
import { randomBytes } from 'node:crypto'
import { linkSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Log } from '../../runtime/log-codes.ts'
import { readSettingFile } from '../../runtime/regular-file.ts'
import { KEY_BYTES, parseTokenKeys } from './token.ts'

/** Reads the hypervisor's own key, or creates one. Creates the state directory with mode 0700 if it is missing. */
export function ownTokenKey(stateDirectory: string, log: Log): Uint8Array {
  const path = join(stateDirectory, 'token-key')
  const key = randomBytes(KEY_BYTES)
  try {
    mkdirSync(stateDirectory, { recursive: true, mode: 0o700 })
    const kept = readKey(path, log)
    if (kept !== undefined) return kept
    const draft = `${path}.${process.pid}`
    try {
      writeFileSync(draft, `${key.toString('base64')}\n`, { mode: 0o600, flush: true })
      linkSync(draft, path) // atomic, and never replaces the key of another daemon
    } finally {
      rmSync(draft, { force: true })
    }
  } catch (error) {
    log.warn(
      { code: 'token-key-not-kept', path, reason: (error as Error).message },
      'the session token key cannot be read or saved; after a restart guests must fetch new tokens, ' +
        'and without record keys or IMDS_TOKEN_KEYS_FILE the journal is not served',
    )
  }
  return key
}

/** The saved key; undefined if there is none, or if it was malformed and is removed now. */
function readKey(path: string, log: Log): Uint8Array | undefined {
  let text: string
  try {
    text = readSettingFile(path, 'refuse').toString('latin1')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
  const kept = parseTokenKeys(text)
  if (kept.ok) return kept.value[0]!
  log.warn(
    { code: 'token-key-malformed', path },
    'the session token key is malformed; a new one replaces it, and guests must fetch new tokens',
  )
  rmSync(path)
  return undefined
}
