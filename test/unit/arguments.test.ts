import { afterEach, expect, test, vi } from 'vitest'
import { parseArguments } from '../../src/arguments.ts'
import { SETTINGS } from '../../src/config.ts'
import { VERSION } from '../../src/version.ts'

afterEach(() => { vi.restoreAllMocks() })

/** Parses arguments that end the process; gives the exit status and what was printed. */
function ended(...args: string[]): { status: unknown, printed: string } {
  let printed = ''
  const print = (text: unknown) => {
    printed += String(text)
    return true
  }
  vi.spyOn(process.stdout, 'write').mockImplementation(print)
  vi.spyOn(process.stderr, 'write').mockImplementation(print)
  const exit = vi.spyOn(process, 'exit').mockImplementation((status) => { throw new Error(`exit ${String(status)}`) })
  expect(() => parseArguments(['node', 'imdsd', ...args])).toThrow(/^exit /)
  return { status: exit.mock.calls[0]?.[0], printed }
}

test('no argument is needed; --demo and --check ask for one thing each', () => {
  expect([[], ['--demo'], ['--check']].map((args) => parseArguments(['node', 'imdsd', ...args]))).toEqual([{}, { demo: true }, { check: true }])
})

test.each(['--demo --check', '--dmeo', 'start', '--check=yes', '--demo now'])('%s is wrong usage: exit status 64, and a hint at --help', (line) => {
  const { status, printed } = ended(...line.split(' '))
  expect(status).toBe(64)
  expect(printed).toMatch(/^error: [^]*--help lists the options/)
})

test('--version prints the version, with exit status 0', () => { expect(ended('--version')).toEqual({ status: 0, printed: `${VERSION}\n` }) })

test('--help lists every variable with its default, and every exit status', () => {
  const { status, printed } = ended('--help')
  expect(status).toBe(0)
  for (const [name, value] of Object.entries(SETTINGS)) expect(printed.split('\n').map((line) => line.trim().split(/ {2,}/))).toContainEqual(value === undefined || value === '' ? [name] : [name, value])
  for (const exit of ['0', '1', '64', '78']) expect(printed).toMatch(new RegExp(`\\n  ${exit} +\\S`))
})
