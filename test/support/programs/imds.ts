/**
 * imdsd and imdsctl as tests start them. `npm test` builds them once, into IMDS_TEST_BUILD: built, they start in a quarter of the CPU time.
 * A test that is run alone starts them from the source, which needs no build.
 */
import { execFileSync } from 'node:child_process'
import { cpSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = new URL('../../../', import.meta.url).pathname
const BUILD = process.env['IMDS_TEST_BUILD']

export const IMDSD = BUILD === undefined ? join(ROOT, 'src/main.ts') : join(BUILD, 'main.js')
export const IMDSCTL = BUILD === undefined ? join(ROOT, 'src/cli/imdsctl.ts') : join(BUILD, 'imdsctl.js')
/** The library, likewise. */
export const LIBRARY = BUILD === undefined ? join(ROOT, 'src/library.ts') : join(BUILD, 'library.js')

/** The environment of a program: PATH, and the cache of compiled code that `npm test` sets. */
export function programEnvironment(): NodeJS.ProcessEnv {
  return { PATH: process.env['PATH'], NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'] }
}

/** Lays the built programs out in `directory`, as they are installed. */
export function buildInto(directory: string): void {
  if (BUILD !== undefined) cpSync(BUILD, directory, { recursive: true })
  else execFileSync(process.execPath, [join(ROOT, 'node_modules/rolldown/bin/cli.mjs'), '-c', join(ROOT, 'rolldown.config.js'), '--dir', directory], { cwd: ROOT, stdio: 'ignore' })
}
