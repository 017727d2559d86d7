/**
 * imdsd --check: checks a configuration without listening, connecting or writing. It checks the variables, and that this user can read the files that
 * they name and that these are valid.
 */
import { createPrivateKey, X509Certificate, type KeyObject } from 'node:crypto'
import { accessSync, constants, existsSync, readFileSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { parseConfig, settingOf, type ConfigFault, type Variable } from './config.ts'
import { enabledNetworks } from './runtime/systemd.ts'
import { parseStoreUrl } from './store/url.ts'

/** The result of a check. `notes` are warnings. */
export interface Checked { readonly faults: readonly ConfigFault[], readonly notes: readonly string[] }

type Environment = Readonly<Record<string, string | undefined>>

/** Checks a configuration as the user of this process, at a time (milliseconds since 1970). */
export function checkConfiguration(env: Environment, nowMs: number): Checked {
  const parsed = parseConfig(env, { passed: [], enabled: enabledNetworks() }, (path) => readFileSync(path, 'utf8'))
  const notes = parsed.ok && parsed.unknown.length > 0 ? [`unknown variables, which are ignored: ${parsed.unknown.join(', ')}`] : []
  if (process.getuid?.() === 0) notes.push('checked as root, which can read every file; imds.service runs as the user imds (runuser -u imds -- imdsd --check)')
  const faults = [...parsed.ok ? [] : parsed.faults, ...redisFaults(env, nowMs), ...stateFaults(env)]
  const store = parseStoreUrl(settingOf(env, 'IMDS_STORE') ?? '')
  if (store?.kind === 'files') {
    if (!existsSync(store.directory)) notes.push(`IMDS_STORE: ${store.directory} does not exist yet; the first publish creates it`)
    else faults.push(...accessFaults('IMDS_STORE', store.directory, constants.R_OK | constants.X_OK, 'read'))
  }
  return { faults, notes }
}

function redisFaults(env: Environment, nowMs: number): ConfigFault[] {
  const faults: ConfigFault[] = []
  /** Applies `use` to the text of a variable's file. An error that it throws becomes a fault. */
  const read = <T>(variable: Variable, use: (text: string) => T): T | undefined => {
    const path = settingOf(env, variable)
    if (path === undefined) return undefined
    try {
      return use(readFileSync(path, 'utf8'))
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException
      faults.push({ variable, message: error instanceof Unusable ? `${path} ${message}` : `cannot be read: ${code ?? message}` })
      return undefined
    }
  }
  for (const variable of ['IMDS_REDIS_PASSWORD_FILE', 'IMDS_REDIS_SENTINEL_PASSWORD_FILE'] as const) read(variable, checkPassword)
  read('IMDS_REDIS_CA_FILE', (text) => certificatesOf(text, nowMs))
  const [certificate] = read('IMDS_REDIS_CERT_FILE', (text) => certificatesOf(text, nowMs)) ?? []
  const key = read('IMDS_REDIS_KEY_FILE', privateKeyOf)
  if (certificate !== undefined && key !== undefined && !certificate.checkPrivateKey(key)) {
    faults.push({ variable: 'IMDS_REDIS_KEY_FILE', message: 'is not the key of the certificate in IMDS_REDIS_CERT_FILE' })
  }
  return faults
}

/** A file that can be read but is not valid. The message continues its path. */
class Unusable extends Error {}

function checkPassword(text: string): void {
  if (text.split(/\r?\n/, 1)[0] === '') throw new Unusable('has no password in its first line')
}

/** The certificates of a PEM file, in order. */
function certificatesOf(text: string, nowMs: number): X509Certificate[] {
  const blocks = text.match(/-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----/gs) ?? []
  if (blocks.length === 0) throw new Unusable('has no PEM certificate')
  const certificates = blocks.map((block, i) => {
    try {
      return new X509Certificate(block)
    } catch {
      throw new Unusable(`has a certificate that cannot be parsed, number ${String(i + 1)}`)
    }
  })
  const [first] = certificates as [X509Certificate]
  if (certificates.every(({ validToDate }) => validToDate.getTime() < nowMs)) throw new Unusable(`expired on ${first.validTo}`)
  if (certificates.every(({ validFromDate }) => validFromDate.getTime() > nowMs)) throw new Unusable(`is not valid before ${first.validFrom}`)
  return certificates
}

function privateKeyOf(text: string): KeyObject {
  try {
    return createPrivateKey(text)
  } catch {
    throw new Unusable('has no PEM private key, or one that needs a passphrase')
  }
}

/** The daemon creates a missing directory, so its nearest existing parent is checked. */
function stateFaults(env: Environment): ConfigFault[] {
  let path = settingOf(env, 'IMDS_STATE_DIR')!
  if (!path.startsWith('/')) return []
  while (!existsSync(path)) path = dirname(path)
  return accessFaults('IMDS_STATE_DIR', path, constants.R_OK | constants.W_OK | constants.X_OK, 'write')
}

function accessFaults(variable: Variable, path: string, mode: number, verb: string): ConfigFault[] {
  try {
    if (!statSync(path).isDirectory()) return [{ variable, message: `${path} is not a directory` }]
    accessSync(path, mode)
    return []
  } catch (error) {
    return [{ variable, message: `this user cannot ${verb} ${path}: ${(error as NodeJS.ErrnoException).code ?? ''}` }]
  }
}
