/** Man pages: the help of a program and of each of its commands as it is printed, and the variables of a program. */
import type { Command } from 'commander'
import type { VariableTable } from '../runtime/variables.ts'
import { VERSION } from '../runtime/installation.ts'
import { helpOf } from './described.ts'

/** A page: its name with the section of the manual, such as `imdsctl(1)`. */
export interface Page {
  readonly name: string
  readonly section: number
  readonly seeAlso: readonly string[]
}

/** A variable table, and the page that has it. */
export interface VariablesElsewhere {
  readonly text: string
  readonly page: string
}

/** Builds the page of a program. `variables`: a part of its help that another page has. */
export function programPage(program: Command, page: Page, variables: VariablesElsewhere | undefined): string {
  const help = helpOf(program)
  const text = variables === undefined ? help : help.replace(variables.text, `${variables.page} lists them.`)
  const [summary = ''] = program.description().split('. ', 1)
  return pageOf(page, summary.replace(/\.$/, ''), [
    heading('Usage'),
    verbatim(text),
    ...(program.commands.length === 0 ? [] : [heading('Commands')]),
    ...program.commands.flatMap((command) => [`.SS ${command.name()}`, verbatim(helpOf(command))]),
  ])
}

/** Builds the page of the file that sets the variables of a program. */
export function variablesPage(table: VariableTable, page: Page & { readonly program: string }): string {
  const sections = Map.groupBy(Object.entries(table), ([, { section }]) => section)
  return pageOf(page, `the variables of ${page.program}`, [
    heading('Description'),
    escapeRoff(
      `systemd sets these variables for ${page.program}. A line of the file is NAME=VALUE; a line that begins with # is ` +
        `a comment. ${page.program} --check names every variable that is wrong.`,
    ),
    ...[...sections].flatMap(([section, rows]) => [
      heading(section),
      ...rows.map(([name, { help, default: otherwise = '' }]) => {
        const explanation = otherwise === '' ? help : `${help} (default: ${otherwise})`
        return `.TP\n\\fB${escapeRoff(name)}\\fR\n${escapeRoff(explanation)}`
      }),
    ]),
  ])
}

function pageOf({ name, section, seeAlso }: Page, summary: string, parts: readonly string[]): string {
  return `${[
    `.TH "${name.toUpperCase()}" "${section}" "" "imds ${VERSION}" "imds"`,
    '.ad l',
    '.nh',
    heading('Name'),
    `${escapeRoff(name)} \\- ${escapeRoff(summary)}`,
    ...parts,
    heading('See also'),
    seeAlso.map(escapeRoff).join(', '),
  ].join('\n')}\n`
}

function heading(text: string): string {
  return `.SH "${escapeRoff(text.toUpperCase()).replaceAll('"', '\\(dq')}"`
}

/** A text whose lines stay as they are. */
function verbatim(text: string): string {
  return `.nf\n${escapeRoff(text)}\n.fi`
}

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
