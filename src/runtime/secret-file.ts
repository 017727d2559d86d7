/** Secrets that arrive as files, such as systemd's credentials. */
import type { Parsed } from '../metadata/parsed.ts'
import { readTextFile } from './text-file.ts'
import { readSettingFile } from './regular-file.ts'

/** True for a variable that names a file of a password or of keys. */
export function namesSecrets(variable: string): boolean {
  return /^IMDS_\w*(?:PASSWORD|KEYS?)_FILE$/.test(variable)
}

export function firstLine(text: string): string {
  return text.split(/\r?\n/, 1)[0] ?? ''
}

/** The first line of a file: a password. Throws an error that names the file if it cannot be read. */
export function readSecretFile(path: string): string {
  return firstLine(reading(path, readTextFile))
}

/** The password in the first line of a file's text. The fault continues the name of a variable. */
export function parsePassword(text: string): Parsed<string, string> {
  const value = firstLine(text)
  return value === ''
    ? { ok: false, faults: ['names a file that has no password in its first line'] }
    : { ok: true, value }
}

/** The bytes of a file that a setting names. Throws an error that names the file if it cannot be read. */
export function readConfigFile(path: string): Buffer {
  return reading(path, readSettingFile)
}

function reading<T>(path: string, read: (path: string) => T): T {
  try {
    return read(path)
  } catch (error) {
    throw new Error(formatUnreadable(path, error), { cause: error })
  }
}

/** The message for a file that cannot be read, with the remedy if another user could read it. */
export function formatUnreadable(path: string, error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  const remedy =
    code === 'EACCES' && process.getuid?.() !== 0
      ? '; this user may not read it: run the command as root, or as the user who may'
      : ''
  return `${path} cannot be read: ${code ?? message}${remedy}`
}
