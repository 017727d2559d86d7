/**
 * The programs as they are installed: what `npm run build` makes, in a folder of the test's.
 */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'

const ROOT = new URL('../../', import.meta.url).pathname

/** Builds the programs into `directory`. */
export function buildInto(directory: string): void {
  execFileSync(process.execPath, [join(ROOT, 'node_modules/rolldown/bin/cli.mjs'), '-c', join(ROOT, 'rolldown.config.js'), '--dir', directory], { cwd: ROOT, stdio: 'ignore' })
}
