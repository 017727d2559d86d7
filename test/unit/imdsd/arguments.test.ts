import { PassThrough } from 'node:stream'
import { afterEach, expect, test, vi } from 'vitest'
import { parseArguments } from '../../../src/imdsd/arguments.ts'
import { VARIABLES } from '../../../src/imdsd/config.ts'
import { Output } from '../../../src/runtime/output.ts'
import type { Variable } from '../../../src/runtime/variables.ts'
import { VERSION } from '../../../src/runtime/installation.ts'

/** The output of these tests; commander prints without it. */
const OUTPUT = new Output('imdsd', new PassThrough(), new PassThrough(), () => undefined)

afterEach(() => vi.restoreAllMocks())

/** Parses arguments that end the process; gives the exit status and what was printed. */
async function ended(...args: string[]): Promise<{ status: unknown; printed: string }> {
  let printed = ''
  const print = (text: unknown) => {
    printed += String(text)
    return true
  }
  vi.spyOn(process.stdout, 'write').mockImplementation(print)
  vi.spyOn(process.stderr, 'write').mockImplementation(print)
  const exit = vi.spyOn(process, 'exit').mockImplementation((status) => {
    throw new Error(`exit ${String(status)}`)
  })
  await expect(parseArguments(['node', 'imdsd', ...args], OUTPUT)).rejects.toThrow(/^exit /)
  return { status: exit.mock.calls[0]?.[0], printed }
}

test('no argument is needed; --demo and --check ask for one thing each', async () => {
  expect(
    await Promise.all([[], ['--demo'], ['--check']].map((args) => parseArguments(['node', 'imdsd', ...args], OUTPUT))),
  ).toEqual([{}, { demo: true }, { check: true }])
})

test.each(['--demo --check', '--dmeo', 'start', '--check=yes', '--connect', '--demo now'])(
  '%s is wrong usage: exit status 64, and a hint at --help',
  async (line) => {
    const { status, printed } = await ended(...line.split(' '))
    expect(status).toBe(64)
    expect(printed).toMatch(/^error: [^]*--help lists the options/)
  },
)

test('--version prints the version, with exit status 0', async () => {
  expect(await ended('--version')).toEqual({ status: 0, printed: `${VERSION}\n` })
})

test('--help lists every variable with its default, and every exit status', async () => {
  const { status, printed } = await ended('--help')
  expect(status).toBe(0)
  const lines = printed.split('\n').map((line) => line.trim().split(/ {2,}/))
  for (const [name, { help, default: value = '' }] of Object.entries<Variable>(VARIABLES))
    expect(lines).toContainEqual([name, value === '' ? help : `${help} (default: ${value})`])
  for (const exit of ['0', '1', '64', '69', '74', '78']) expect(printed).toMatch(new RegExp(`\\n  ${exit} +\\S`))
})
