import { Command } from 'commander'
import { expect, test } from 'vitest'
import { escapeRoff, programPage } from '../../../src/manual/man-page.ts'

test('no character of a text is a command of groff', () => {
  expect(escapeRoff(".a\n'b \\c `d` --e ~^")).toBe('\\&.a\n\\(aqb \\ec \\(gad\\(ga \\-\\-e \\(ti\\(ha')
})

test('a page has the help of the program and of each command, and names the page of its variables', () => {
  const program = new Command('x').description('does it. And more').addHelpText('after', '\nX_A  a variable')
  program.command('put').description('puts').addHelpText('after', '\nStatuses:\n  0   done')
  const page = programPage(program, { name: 'x', section: 1, seeAlso: [] }, { text: 'X_A  a variable', page: 'x(5)' })
  expect(page).toContain('x \\- does it\n')
  expect(page).toContain('\nx(5) lists them.\n.fi\n')
  expect(page).toMatch(/\.SS put\n\.nf\nUsage: x put \[options\]\n[^]*\nStatuses:\n {2}0 {3}done\n\.fi\n/)
})
