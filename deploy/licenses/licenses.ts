/**
 * The licenses of the libraries that a bundle contains, as the text of a file that is installed beside it: a part for
 * each library, with a line of dashes between them.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** What is between two parts. */
export const SEPARATOR = `\n${'-'.repeat(79)}\n\n`

/** Libraries whose files are copied from the package of another one. */
const COPIES: Readonly<Record<string, readonly string[]>> = { '@fastify/swagger-ui': ['swagger-ui'] }

/** The text for a bundle, by the files that are in it. Throws if a library has no license. */
export function formatLicenses(files: Iterable<string>): string {
  const packages = new Map<string, string>()
  for (const file of files) {
    const [, path, name] = /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(file) ?? []
    if (path === undefined || name === undefined) continue
    const { version } = JSON.parse(readFileSync(join(path, 'package.json'), 'utf8')) as { version: string }
    packages.set(`${name} ${version}`, licenseOf(name, path))
    for (const copy of COPIES[name] ?? []) packages.set(copy, licenseOf(copy))
  }
  return [...packages]
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([name, text]) => `${name}\n\n${text.replaceAll('\r\n', '\n').trim()}\n`)
    .join(SEPARATOR)
}

/** The license and the notice of a library: from its package, or from this directory if that has none. */
function licenseOf(name: string, path?: string): string {
  const files =
    path === undefined ? [] : readdirSync(path).filter((file) => /^(licen[cs]e|copying|notice)\b/i.test(file))
  if (path !== undefined && files.length > 0)
    return files.map((file) => readFileSync(join(path, file), 'utf8').trim()).join('\n\n')
  const ours = join(import.meta.dirname, `${name}.txt`)
  if (existsSync(ours)) return readFileSync(ours, 'utf8')
  throw new Error(`a bundle has code of ${name}, whose package has no license: write its license into ${ours}`)
}
