/** The files of passwords, certificates and keys that variables name, such as systemd's credentials. */
import { createPrivateKey, X509Certificate, type KeyObject } from 'node:crypto'
import type { Environment, VariableFault } from './variables.ts'
import { readTextFile } from './text-file.ts'
import { readSettingFile } from './regular-file.ts'

/** The certificates in a text. */
export const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----/gs

/**
 * What is wrong with the files, before a service starts with them. The end of a variable's name says what its file has: `_PASSWORD_FILE`, `_CA_FILE`,
 * `_CERT_FILE` or `_KEY_FILE`, whose certificate `_CERT_FILE` names; of any other, only that it can be read. `readText`
 * reads with the rights of the service.
 */
export function settingFileFaults(
  names: readonly string[],
  env: Environment,
  nowMs: number,
  readText: (path: string) => string,
): VariableFault[] {
  const faults: VariableFault[] = []
  const certificates = new Map<string, X509Certificate>()
  const keys = new Map<string, KeyObject>()
  for (const variable of names) {
    const path = env[variable] ?? ''
    if (path === '') continue
    try {
      const text = readText(path)
      if (variable.endsWith('_PASSWORD_FILE')) passwordIn(text)
      else if (/_(CA|CERT)_FILE$/.test(variable)) certificates.set(variable, certificatesOf(text, nowMs)[0]!)
      else if (variable.endsWith('_KEY_FILE')) keys.set(variable, privateKeyOf(text))
    } catch (error) {
      faults.push({ variable, message: formatUnreadable(path, error) })
    }
  }
  for (const [variable, key] of keys) {
    const name = variable.replace(/KEY_FILE$/, 'CERT_FILE')
    if (certificates.get(name)?.checkPrivateKey(key) === false)
      faults.push({ variable, message: `is not the key of the certificate in ${name}` })
  }
  return faults
}

/** A file that can be read but is not valid. The message continues its path. */
class Unusable extends Error {}

function passwordIn(text: string): string {
  const [password = ''] = text.split(/\r?\n/, 1)
  if (password === '') throw new Unusable('has no password in its first line')
  return password
}

function certificatesOf(text: string, nowMs: number): X509Certificate[] {
  const blocks = text.match(PEM_CERTIFICATE) ?? []
  if (blocks.length === 0) throw new Unusable('has no PEM certificate')
  const certificates = blocks.map((block, i) => {
    try {
      return new X509Certificate(block)
    } catch {
      throw new Unusable(`has a certificate that cannot be parsed, number ${i + 1}`)
    }
  })
  const [first] = certificates as [X509Certificate]
  if (certificates.every(({ validToDate }) => validToDate.getTime() < nowMs))
    throw new Unusable(`expired on ${first.validTo}`)
  if (certificates.every(({ validFromDate }) => validFromDate.getTime() > nowMs))
    throw new Unusable(`is not valid before ${first.validFrom}`)
  return certificates
}

function privateKeyOf(text: string): KeyObject {
  try {
    return createPrivateKey(text)
  } catch {
    throw new Unusable('has no PEM private key, or one that needs a passphrase')
  }
}

/** True for a variable that names a file of a password or of keys. */
export function namesSecrets(variable: string): boolean {
  return /^IMDS_\w*(?:PASSWORD|KEYS?)_FILE$/.test(variable)
}

/** The password in the first line of a file. Throws an error that names the file if there is none. */
export function readSecretFile(path: string): string {
  return reading(path, () => passwordIn(readTextFile(path)))
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

/** The message for a file that cannot be used, with the remedy if another user could read it. */
export function formatUnreadable(path: string, error: unknown): string {
  if (error instanceof Unusable) return `${path} ${error.message}`
  const { code, message } = error as NodeJS.ErrnoException
  const remedy =
    code === 'EACCES' && process.getuid?.() !== 0
      ? '; this user may not read it: run the command as root, or as the user who may'
      : ''
  return `${path} cannot be read: ${code ?? message}${remedy}`
}
