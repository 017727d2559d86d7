/** Runs the commands of a document in a shell. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { programEnvironment } from './imds.ts'
import { run, type Ran } from './processes.ts'
import { shortDirectory } from '../test-directory.ts'

/**
 * Runs the commands of a document. The shell ends at the first that fails. `commands`: those that are another program
 * here, such as `imdsctl` with its options.
 */
export async function runExample(
  t: Test,
  example: string,
  commands: Readonly<Record<string, readonly string[]>>,
): Promise<Ran> {
  const directory = shortDirectory(t)
  for (const [name, words] of Object.entries(commands))
    writeFileSync(join(directory, name), `#!/bin/sh\nexec ${words.map((word) => `'${word}'`).join(' ')} "$@"\n`, {
      mode: 0o755,
    })
  const environment = programEnvironment()
  return run(['sh', '-euc', `cd ${directory}\n${example}`], {
    env: { ...environment, PATH: `${directory}:${environment['PATH']!}` },
  })
}
