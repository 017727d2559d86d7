/** Text for man pages, in the macros of man(7). */

/** Characters that groff would change or take for a command. */
const SPECIAL: Readonly<Record<string, string>> = {
  '\\': '\\e',
  '-': '\\-',
  "'": '\\(aq',
  '`': '\\(ga',
  '^': '\\(ha',
  '~': '\\(ti',
}

/** Escapes a text, which may begin a line. */
export function escapeRoff(text: string): string {
  return text.replace(/[\\'`^~-]/g, (one) => SPECIAL[one]!).replace(/^\./gm, '\\&.')
}

/** A text in bold. */
export function bold(text: string): string {
  return `\\fB${escapeRoff(text)}\\fR`
}

/** A heading. */
export function heading(text: string): string {
  return `.SH "${escapeRoff(text.toUpperCase()).replaceAll('"', '\\(dq')}"`
}

/** A term with its explanation. */
export function item(term: string, explanation: string): string {
  return `.TP\n${bold(term)}\n${escapeRoff(explanation)}`
}

/**
 * A text of a program's help: paragraphs, lists with two columns, and examples, which are indented. A line that ends
 * with a colon before a list or an example is a heading, if `hasHeadings`.
 */
export function formatHelpText(text: string, hasHeadings: boolean): string {
  const lines = text.split('\n')
  const result: string[] = []
  let kind: 'text' | 'list' | 'example' | undefined
  const become = (next: typeof kind, start: string) => {
    if (kind === 'example' && next !== 'example') result.push('.fi', '.RE')
    if (kind !== next && start !== '') result.push(start)
    kind = next
  }
  for (const [i, line] of lines.entries()) {
    const [, term, explanation] = /^ {2}(\S+(?: \S+)*) {2,}(\S.*)$/.exec(line) ?? []
    if (line.trim() === '') become(undefined, '')
    else if (hasHeadings && line.endsWith(':') && lines[i + 1]?.startsWith('  ') === true) {
      become(undefined, '')
      result.push(heading(line.slice(0, -1)))
    } else if (term !== undefined && explanation !== undefined) {
      become('list', '')
      result.push(item(term, explanation))
    } else if (line.startsWith('  ')) {
      become('example', '.PP\n.RS 4\n.nf')
      result.push(escapeRoff(line.slice(2)))
    } else {
      become('text', '.PP')
      result.push(escapeRoff(line))
    }
  }
  become(undefined, '')
  return result.join('\n')
}
