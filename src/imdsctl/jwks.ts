/** `imdsctl jwks`: writes the public documents of an issuer of identity tokens. */
import { createPublicKey, type KeyObject } from 'node:crypto'
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { isIssuer, ISSUER_RULE } from '../identity/issuer.ts'
import { issuerDocuments, ISSUER_PATHS } from '../identity/issuer-documents.ts'
import { algorithmOf } from '../identity/key.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'

/** Writes the documents of an issuer with the keys of all files, each as a whole. */
export async function publishKeys(
  output: Output,
  directory: string,
  files: readonly string[],
  issuer: string | undefined,
): Promise<void> {
  if (issuer === undefined || !isIssuer(issuer)) throw new CommandFailure(EXIT.usage, `--issuer must be ${ISSUER_RULE}`)
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
