/**
 * The programs that check the OpenAPI document and make clients of it. They are large, and only their tests need them: so
 * the first of these tests installs them, and not `npm ci`.
 */
import { execFileSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { ROOT } from '../tools/documents.ts'

const DIRECTORY = `${ROOT}node_modules/.api-tools/`
/** `installed` is written last, so an installation that was interrupted begins again. */
const INSTALL = `cp ../../test/support/api-tools/*.json .
cmp -s package-lock.json installed || {
  npm ci --ignore-scripts --no-audit --no-fund
  cp package-lock.json installed
}`

/** The directory of the programs; its `node_modules/.bin` is for the PATH. Tests that call it at once wait for each other. */
export function installApiTools(): string {
  mkdirSync(DIRECTORY, { recursive: true })
  execFileSync('flock', ['.', 'bash', '-ec', INSTALL], { cwd: DIRECTORY, stdio: ['ignore', 'ignore', 'inherit'] })
  return DIRECTORY
}

/** What a module of the programs exports. */
export function requireApiTool(name: string): unknown {
  return createRequire(`${installApiTools()}package.json`)(name)
}
