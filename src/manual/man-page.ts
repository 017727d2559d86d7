/** Man pages of a program and of its variables. */
import { Help, type Command, type Option } from 'commander'
import type { VariableTable } from '../runtime/variables.ts'
import { VERSION } from '../runtime/version.ts'
import { optionsOf, textAfterHelp } from './described.ts'
import { bold, escapeRoff, formatHelpText, heading, item } from './roff.ts'

/** A page: its name with the section of the manual, such as `imdsctl(1)`. */
export interface Page {
  readonly name: string
  readonly section: number
  readonly seeAlso: readonly string[]
}

/** A variable table, and the page that has it. */
export interface VariablesElsewhere {
  /** As --help prints it. */
  readonly text: string
  readonly page: string
}

/** Builds the page of a program. `variables`: a part of its help that another page has. */
export function programPage(program: Command, page: Page, variables: VariablesElsewhere | undefined): string {
  const after = textAfterHelp(program)
  const text = variables === undefined ? after : after.replace(variables.text, `${variables.page} lists them.`)
  const [, summary, rest] = /^(.*?)\.?(?: (?<=\. )(.*))?$/s.exec(program.description())!
  const headings = text.search(/^\S.*:\n {2}/m)
  const [before, sections] = headings === -1 ? [text, ''] : [text.slice(0, headings), text.slice(headings)]
  const description = [rest ?? '', before.trim()].filter((part) => part !== '')
  return pageOf(page, summary!, [
    heading('Synopsis'),
    escapeRoff(usageOf(program)),
    ...(description.length === 0 ? [] : [heading('Description'), formatHelpText(description.join('\n\n'), true)]),
    ...(program.commands.length === 0 ? [] : [heading('Commands'), ...program.commands.map(commandPart)]),
    heading('Options'),
    ...optionItems(optionsOf(program)),
    ...(sections === '' ? [] : [formatHelpText(sections, true)]),
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
      ...rows.map(([name, { help, default: otherwise = '' }]) =>
        item(name, otherwise === '' ? help : `${help} (default: ${otherwise})`),
      ),
    ]),
  ])
}

function pageOf({ name, section, seeAlso }: Page, summary: string, parts: readonly string[]): string {
  return `${[
    `.TH "${name.toUpperCase()}" "${String(section)}" "" "imds ${VERSION}" "imds"`,
    '.ad l',
    '.nh',
    heading('Name'),
    `${escapeRoff(name)} \\- ${escapeRoff(summary)}`,
    ...parts,
    heading('See also'),
    seeAlso.map(escapeRoff).join(', '),
  ].join('\n')}\n`
}

function usageOf(command: Command): string {
  return command.createHelp().commandUsage(command)
}

function commandPart(command: Command): string {
  const args = command.registeredArguments.filter(({ description }) => description !== '')
  return [
    `.SS ${bold(usageOf(command).replace(/^\S+ /, ''))}`,
    escapeRoff(sentence(command.description())),
    ...args.map((argument) => item(argument.name(), argument.description)),
    ...optionItems(optionsOf(command).filter(({ long }) => long !== '--help')), // its program's options have that
    formatHelpText(textAfterHelp(command), false),
  ]
    .filter((part) => part !== '')
    .join('\n')
}

function optionItems(options: readonly Option[]): string[] {
  const help = new Help()
  return options.map((option) => item(option.flags, help.optionDescription(option)))
}

function sentence(text: string): string {
  return `${text[0]?.toUpperCase() ?? ''}${text.slice(1)}.`
}
