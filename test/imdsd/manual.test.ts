/**
 * The man pages and the completion of the three programs, in groff and in a real bash. It runs on a terminal, gets keys,
 * and prints the command line that the completion has made of them.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { manualFiles } from '../../src/manual/manual-files.ts'
import { run } from '../support/programs/processes.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

const FILES = manualFiles()
const directory = shortDirectory(t)
for (const [path, text] of Object.entries(FILES)) {
  mkdirSync(dirname(join(directory, path)), { recursive: true })
  writeFileSync(join(directory, path), text)
}
mkdirSync(join(directory, 'here'))
writeFileSync(join(directory, 'here/records.json'), '')

/** What is typed, and the command line that runs. */
const KEYS: readonly (readonly [keys: string, line: string])[] = [
  ['imdsctl schem\t', 'imdsctl schema'],
  ['imdsctl --js\tlis\t--acc\tacc-1', 'imdsctl --json list --account acc-1'],
  ['imdsctl --region list pu\trec\t', 'imdsctl --region list put records.json'],
  ['imdsctl --password-file rec\tge\t', 'imdsctl --password-file records.json get'],
  ['imds-api --environment-file rec\treco\t', 'imds-api --environment-file records.json reconcile'],
  ['imdsd --chec\t--conn\t', 'imdsd --check --connect'],
]

/** Types lines into a shell on a terminal, and returns what the commands printed: their name and arguments. */
async function typed(shell: string, setUp: string): Promise<string[]> {
  const programs = ['imdsctl', 'imdsd', 'imds-api'].map((name) => `${name}() { printf 'ran<%s>\\n' "${name} $*"; }`)
  const lines = [`cd ${directory}/here`, ...programs, setUp, ...KEYS.map(([keys]) => keys), 'exit', '']
  const { stdout } = await run(['script', '-qec', shell, '/dev/null'], {
    input: lines.join('\n'),
    env: { PATH: process.env['PATH'], TERM: 'dumb', INPUTRC: '/dev/null', HOME: directory },
  })
  return [...stdout.toString().matchAll(/^ran<(.*?) *>/gm)].map(([, line]) => line!)
}

for (const path of Object.keys(FILES).filter((name) => name.startsWith('man/')))
  t.test(`groff formats ${path} without a warning`, { skip: without('groff') }, async (t) => {
    const { status, stdout, stderr } = await run(['groff', '-man', '-Tutf8', '-ww', join(directory, path)])
    t.same({ status, stderr }, { status: 0, stderr: '' })
    t.match(stdout.toString(), /imds \d+\.\d+\.\d+/)
  })

t.test('bash completes commands, options and files', async (t) => {
  const scripts = ['imdsctl', 'imdsd', 'imds-api'].map((name) => join(directory, 'completions/bash', name))
  for (const script of scripts) t.equal((await run(['bash', '-n', script])).status, 0)
  t.same(
    await typed('bash --noprofile --norc -i', scripts.map((script) => `source ${script}`).join('; ')),
    KEYS.map(([, line]) => line),
  )
})
