/**
 * Which keys are session tokens made with?
 *
 * Those of a file that an operator gives to all hosts of a region, so that tokens survive a live migration; or one that this host made
 * for itself in its state directory, so that they survive a restart. A key that cannot be kept costs guests one more PUT after a
 * restart, and no answer.
 */
import { randomBytes } from 'node:crypto'
import { linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Logger } from 'pino'
import { FileFault } from './config.ts'
import { KEY_BYTES } from './guest/token.ts'

const OWN = 'token-key'
const FORM = 'must hold 32 random bytes in base64 on each line (openssl rand -base64 32): the first line\'s key makes tokens, all are accepted'

/** The keys, the one to mint with first. Throws a FileFault where the file that was named is missing or holds something else. */
export function loadTokenKeys(file: string | null, stateDirectory: string, log: Logger): readonly Uint8Array[] {
  if (file === null) return [ownKey(join(stateDirectory, OWN), log)]
  let keys: readonly Uint8Array[] | undefined
  try {
    keys = parseKeys(readFileSync(file, 'latin1'))
  } catch (error) {
    throw new FileFault('IMDS_TOKEN_KEYS_FILE', `cannot be read: ${(error as NodeJS.ErrnoException).code ?? String(error)}`)
  }
  if (keys === undefined) throw new FileFault('IMDS_TOKEN_KEYS_FILE', FORM)
  return keys
}

/** The keys of a file's text, or undefined where a line is not one. */
export function parseKeys(text: string): readonly Uint8Array[] | undefined {
  const keys = text.split('\n').map((line) => line.trim()).filter((line) => line !== '').map((line) => Buffer.from(line, 'base64'))
  const isWhole = keys.length > 0 && keys.every((key) => key.length === KEY_BYTES)
  return isWhole ? keys : undefined
}

function ownKey(path: string, log: Logger): Uint8Array {
  try {
    const kept = parseKeys(readFileSync(path, 'latin1'))
    if (kept?.length === 1) return kept[0]!
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
