import { expect, test } from 'vitest'
import { escapeRoff, formatHelpText } from '../../../src/manual/roff.ts'

test('no character of a text is a command of groff', () => {
  expect(escapeRoff(".a\n'b \\c `d` --e ~^")).toBe('\\&.a\n\\(aqb \\ec \\(gad\\(ga \\-\\-e \\(ti\\(ha')
})

test('a text of a help becomes headings, lists, examples and paragraphs', () => {
  const text = ['Statuses:', '  0   done', '  64  wrong usage', '', 'Some', 'text.', '', '  jq .', '  .x', 'End:'].join(
    '\n',
  )
  expect(formatHelpText(text, true).split('\n')).toEqual([
    '.SH "STATUSES"',
    '.TP',
    '\\fB0\\fR',
    'done',
    '.TP',
    '\\fB64\\fR',
    'wrong usage',
    '.PP',
    'Some',
    'text.',
    '.PP',
    '.RS 4',
    '.nf',
    'jq .',
    '\\&.x',
    '.fi',
    '.RE',
    '.PP',
    'End:',
  ])
  expect(formatHelpText('Statuses:\n  0   done', false)).toBe('.PP\nStatuses:\n.TP\n\\fB0\\fR\ndone')
})
