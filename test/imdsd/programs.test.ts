/** imdsd and imdsctl as commands: --help, --version and unknown arguments. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { VARIABLES } from '../../src/imdsd/config.ts'
import { describeVariables } from '../../src/runtime/variables.ts'
import { run } from '../support/programs/processes.ts'
import { IMDSCTL, IMDSD, programEnvironment } from '../support/programs/imds.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string }
const ran = async (program: string, args: readonly string[]) => {
  const { status, stdout, stderr } = await run([process.execPath, program, ...args], { env: programEnvironment() })
  return { status, stdout: stdout.toString(), stderr }
}

t.test('--version and --help of both programs need no other option and no environment', async (t) => {
  for (const program of [IMDSD, IMDSCTL]) {
    for (const option of ['--version', '-V'])
      t.same(await ran(program, [option]), { status: 0, stdout: `${version}\n`, stderr: '' })
    for (const option of ['--help', '-h'])
      t.match(await ran(program, [option]), { status: 0, stdout: /^Usage: (.|\n)*Exit statuses:/, stderr: '' })
  }
  const { stdout } = await ran(IMDSD, ['--help'])
  t.ok(stdout.includes(describeVariables(VARIABLES)))
})

t.test('imdsctl names an unknown or wrong argument and exits with 64', async (t) => {
  for (const [args, name] of [
    [['--frob'], /'--frob'/],
    [['--jsn'], /'--jsn'\n\(Did you mean --json\?\)/],
    [['frob'], /'frob'/],
    [['lst'], /'lst'\n\(Did you mean list\?\)/],
    [['list', '--frob'], /'--frob'/],
    [['list', '--hypervisors', 'hv1'], /'--hypervisors'\n\(Did you mean --hypervisor\?\)/],
    [['get'], /'id'/],
    [['wait', 'x', '--revision', '0x10'], /--revision .*'0x10' is invalid/],
  ] as const) {
    t.match(await imdsctl(args), { status: 64, stdout: '', stderr: name }, args.join(' '))
  }
})
