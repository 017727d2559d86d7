/** `imdsctl identity`: makes the key with which guests prove what they are, and publishes the keys of an issuer. */
import { createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { isIssuer, ISSUER_RULE } from '../identity/issuer.ts'
import { issuerDocuments, ISSUER_PATHS } from '../identity/issuer-documents.ts'
import { makeCertificate } from '../identity/certificate.ts'
import { algorithmOf } from '../identity/key.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'

export const IDENTITY_ACTIONS = ['init', 'jwks'] as const

export interface IdentityOptions {
  readonly ec?: boolean
  readonly issuer?: string
}

export async function identity(
  output: Output,
  action: (typeof IDENTITY_ACTIONS)[number],
  directory: string,
  files: readonly string[],
  { ec = false, issuer }: IdentityOptions,
): Promise<void> {
  if (action === 'jwks') await publishKeys(output, directory, files, issuer)
  else if (files.length > 0)
    throw new CommandFailure(EXIT.usage, `identity init takes one directory, not ${files.join(' ')}`)
  else makeKey(output, directory, ec)
}

/** Makes a key and its certificate, and never overwrites a file. */
function makeKey(output: Output, directory: string, ec: boolean): void {
  const [keyFile, certificateFile] = [join(directory, 'identity-key.pem'), join(directory, 'identity-cert.pem')]
  for (const path of [keyFile, certificateFile])
    if (existsSync(path)) throw new CommandFailure(EXIT.usage, `${path} exists: name another directory`)
  const { privateKey } = ec
    ? generateKeyPairSync('ec', { namedCurve: 'P-256' })
    : generateKeyPairSync('rsa', { modulusLength: 2048 })
  const certificate = makeCertificate(privateKey, Date.now())
  writing(directory, () => {
    mkdirSync(directory, { recursive: true, mode: 0o700 })
    create(keyFile, privateKey.export({ type: 'pkcs8', format: 'pem' }))
    try {
      create(certificateFile, certificate)
    } catch (error) {
      rmSync(keyFile)
      throw error
    }
  })
  output.result({ key: keyFile, certificate: certificateFile }, `${keyFile}\n${certificateFile}`)
}

function create(path: string, text: string): void {
  writeFileSync(path, text, { flag: 'wx', mode: 0o600, flush: true })
}

/** Writes the documents of an issuer with the keys of all files, each as a whole. */
async function publishKeys(
  output: Output,
  directory: string,
  files: readonly string[],
  issuer: string | undefined,
): Promise<void> {
  if (issuer === undefined || !isIssuer(issuer)) throw new CommandFailure(EXIT.usage, `--issuer must be ${ISSUER_RULE}`)
  if (files.length === 0) throw new CommandFailure(EXIT.usage, 'name the certificate of each key that signs tokens')
  const documents = await issuerDocuments(issuer, files.map(publicKeyOf))
  const paths = (['keys', 'configuration'] as const).map((name) => {
    const path = join(directory, ISSUER_PATHS[name])
    writing(path, () => {
      mkdirSync(dirname(path), { recursive: true })
      replace(path, `${JSON.stringify(documents[name], undefined, 2)}\n`)
    })
    return path
  })
  output.result({ issuer, keys: documents.keys.keys.map(({ kid }) => kid), files: paths }, paths.join('\n'))
}

function publicKeyOf(path: string): KeyObject {
  let text: string
  try {
    text = readFileSync(path, 'latin1')
  } catch (error) {
    throw new CommandFailure(EXIT.noInput, `${path} cannot be read: ${(error as NodeJS.ErrnoException).code ?? ''}`)
  }
  try {
    const key = createPublicKey(text)
    if (algorithmOf(key) !== undefined) return key
  } catch {
    // neither a certificate nor a key
  }
  throw new CommandFailure(
    EXIT.badData,
    `${path} has no certificate or key of RSA with 2048 to 4096 bits, or of P-256, in PEM`,
  )
}

/** Everyone may read it: the keys are public. */
function replace(path: string, text: string): void {
  const draft = `${path}.${process.pid}`
  try {
    writeFileSync(draft, text, { flag: 'wx', mode: 0o644, flush: true })
    renameSync(draft, path)
  } finally {
    rmSync(draft, { force: true })
  }
}

function writing(path: string, write: () => void): void {
  try {
    write()
  } catch (error) {
    throw new CommandFailure(EXIT.noInput, `${path} cannot be written: ${(error as Error).message}`)
  }
}
