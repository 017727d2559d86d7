/**
 * Runs the commands of a document in a shell. Programs that the machine of a test does not have, such as an `ssh` to a
 * hypervisor, are carried out by the test.
 */
import { readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { programEnvironment } from './imds.ts'
import { run, type Ran } from './processes.ts'
import { shortDirectory } from '../test-directory.ts'

/** Carries out a program with its arguments. A program whose promise is rejected ends with status 1. */
export type Program = (args: readonly string[]) => Promise<void>

/**
 * `programs`: those that the test carries out. `commands`: those that run, by name, such as `imdsctl` with its options.
 */
export interface ExampleOptions {
  readonly programs?: Readonly<Record<string, Program>>
  readonly commands?: Readonly<Record<string, readonly string[]>>
  readonly env?: Readonly<Record<string, string>>
}

/** Hands a call to the test, and waits for its end. */
const CALL = `#!/bin/sh
call=$(mktemp -u "$CALLS/XXXXXX")
printf '%s\\n' "\${0##*/}" "$@" > "$call.tmp"
mv "$call.tmp" "$call.call"
until [ -e "$call.done" ]; do sleep 0.05; done
exit "$(cat "$call.done")"
`

/** Runs the commands of a document. The shell ends at the first that fails. */
export async function runExample(
  t: Test,
  example: string,
  { programs = {}, commands = {}, env = {} }: ExampleOptions,
): Promise<Ran> {
  const directory = shortDirectory(t)
  const add = (name: string, script: string) => writeFileSync(join(directory, name), script, { mode: 0o755 })
  for (const name of Object.keys(programs)) add(name, CALL)
  for (const [name, words] of Object.entries(commands))
    add(name, `#!/bin/sh\nexec ${words.map((word) => `'${word}'`).join(' ')} "$@"\n`)
  const environment = programEnvironment()
  let hasEnded = false as boolean // TypeScript does not see that `run` sets it
  const shell = run(['sh', '-euc', `cd ${directory}\n${example}`], {
    env: { ...environment, CALLS: directory, PATH: `${directory}:${environment['PATH']!}`, ...env },
  }).finally(() => {
    hasEnded = true
  })
  while (!hasEnded) {
    for (const file of readdirSync(directory).filter((name) => name.endsWith('.call'))) {
      const [name = '', ...args] = readFileSync(join(directory, file), 'utf8').trimEnd().split('\n')
      rmSync(join(directory, file))
      const status = await programs[name]!(args).then(
        () => 0,
        (error: unknown) => {
          t.fail(`${name} ${args.join(' ')}: ${String(error)}`)
          return 1
        },
      )
      const result = join(directory, file.replace('.call', '.result'))
      writeFileSync(result, String(status))
      renameSync(result, result.replace('.result', '.done')) // the script must not read an empty file
    }
    await sleep(20)
  }
  return shell
}
