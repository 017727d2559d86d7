/** Secrets that arrive as files, such as systemd's credentials. */
import { readFileSync } from 'node:fs'

/** The first line of a file: a password. Throws where it cannot be read. */
export function readSecretFile(path: string): string {
  return readFileSync(path, 'utf8').split(/\r?\n/, 1)[0] ?? ''
}
