import { Command, Option } from 'commander'
import { expect, test } from 'vitest'
import { completableOf, optionsOf, helpOf, valueNameOf } from '../../../src/manual/described.ts'

test('the value of an option is known by its name in the flags', () => {
  expect(['--a', '--a <file>', '-a, --a [n]'].map((flags) => valueNameOf(new Option(flags)))).toEqual([
    undefined,
    'file',
    'n',
  ])
})

test('files and directories can be completed, and nothing else', () => {
  expect(
    ['--a <file>', '--a <path>', '--a <directory>', '--a <url>', '--a'].map((flags) =>
      completableOf(new Option(flags)),
    ),
  ).toEqual(['files', 'files', 'directories', 'nothing', 'nothing'])
  const [path] = new Command().argument('<path...>').registeredArguments
  expect(completableOf(path!)).toBe('files')
})

test('the options have that for help, and the help has what was added', () => {
  const program = new Command('x').option('--a').addHelpText('after', '\nMore:\n  b  c')
  expect(optionsOf(program).map(({ long }) => long)).toEqual(['--a', '--help'])
  expect(helpOf(program)).toMatch(/^Usage: x \[options\]\n[^]*\nMore:\n {2}b {2}c$/)
})
