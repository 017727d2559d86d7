/** Reads the documents of the repository for tests and for the generator of tables. */
import { readdirSync, readFileSync } from 'node:fs'

/** The top of the repository, with a slash at its end. */
export const ROOT = new URL('../../', import.meta.url).pathname

/** Every document, by its path in the repository. */
export const DOCUMENTS: readonly string[] = [
  'README.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  'SECURITY.md',
  ...readdirSync(`${ROOT}docs`, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
]

/** The text of a file of the repository. */
export function read(path: string): string {
  return readFileSync(`${ROOT}${path}`, 'utf8')
}

/** The example that a test executes: the fenced block after `<!-- executed: NAME -->`. Throws if there is none. */
export function executed(document: string, name: string): string {
  const [, after] = read(document).split(`<!-- executed: ${name} -->\n\n`)
  const [, code] = /^```\w+\n(.*?)```/s.exec(after ?? '') ?? []
  if (code === undefined) throw new Error(`${document} has no example "${name}"`)
  return code
}
