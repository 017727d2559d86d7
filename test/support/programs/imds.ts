/**
 * The programs and the library that tests use. `npm test` builds them once into IMDS_TEST_BUILD, because built programs
 * start faster. A test that runs alone uses the source.
 */
import { execFileSync } from 'node:child_process'
import { cpSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = new URL('../../../', import.meta.url).pathname
const BUILD = process.env['IMDS_TEST_BUILD']

export const IMDSD = BUILD === undefined ? join(ROOT, 'src/imdsd/main.ts') : join(BUILD, 'main.js')
export const IMDSCTL = BUILD === undefined ? join(ROOT, 'src/imdsctl/main.ts') : join(BUILD, 'imdsctl.js')
export const IMDS_API = BUILD === undefined ? join(ROOT, 'src/imds-api/main.ts') : join(BUILD, 'api.js')
export const LIBRARY = BUILD === undefined ? join(ROOT, 'src/library.ts') : join(BUILD, 'library/index.js')

/** The environment of a program: PATH, and the cache of compiled code that `npm test` sets. */
export function programEnvironment(): NodeJS.ProcessEnv {
  return { PATH: process.env['PATH'], NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'] }
}

/** Builds the programs into `directory`, or copies the build of `npm test`. */
export function buildInto(directory: string): void {
  if (BUILD !== undefined) cpSync(BUILD, directory, { recursive: true })
  else
    execFileSync(
      process.execPath,
      [join(ROOT, 'node_modules/rolldown/bin/cli.mjs'), '-c', join(ROOT, 'rolldown.config.js'), '--dir', directory],
      { cwd: ROOT, stdio: 'ignore' },
    )
}
