/**
 * Programs that are large, and that only some tests or one command need: these install them, and not `npm ci`. The set
 * NAME is described in test/support/tools/NAME/.
 */
import { execFileSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { ROOT } from '../tools/documents.ts'

/** `installed` is written last, so an installation that was interrupted begins again. */
const INSTALL = `cp -r "$1/." .
cmp -s package-lock.json installed || {
  npm ci --ignore-scripts --no-audit --no-fund
  cp package-lock.json installed
}`

/** Returns the directory of the programs; its `node_modules/.bin` is for the PATH. Calls at the same time wait for each other. */
export function installTools(name: 'api' | 'mutation'): string {
  const directory = `${ROOT}node_modules/.tools/${name}/`
  mkdirSync(directory, { recursive: true })
  execFileSync('flock', ['.', 'bash', '-ec', INSTALL, 'bash', `${ROOT}test/support/tools/${name}`], {
    cwd: directory,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  return directory
}
