/** Completion for fish. */
import type { Argument, Command, Option } from 'commander'
import { completableOf, optionsOf, valueNameOf, type Completable } from './described.ts'

/** The options of `complete` for a value that is needed. */
const VALUES: Readonly<Record<Completable, string>> = {
  files: ' -r -F',
  directories: " -x -a '(__fish_complete_directories)'",
  nothing: ' -x',
}
/** Those for an argument. */
const ARGUMENTS: Readonly<Record<Completable, string>> = {
  files: ' -F',
  directories: " -a '(__fish_complete_directories)'",
  nothing: '',
}

export function fishCompletion(program: Command): string {
  const complete = `complete -c ${program.name()}`
  const optionLine = (condition: string) => (option: Option) => {
    const { short, long, description } = option
    const names = `${short === undefined ? '' : ` -s ${short.slice(1)}`}${long === undefined ? '' : ` -l ${long.slice(2)}`}`
    const value = valueNameOf(option) === undefined ? '' : VALUES[completableOf(option)]
    return `${complete}${condition}${names}${value} -d ${quote(description)}`
  }
  const argumentLine = (condition: string) => (argument: Argument) => {
    const values = ARGUMENTS[completableOf(argument)]
    return values === '' ? [] : [`${complete}${condition}${values}`]
  }
  const lines = program.commands.flatMap((command) => {
    const condition = ` -n '__fish_seen_subcommand_from ${command.name()}'`
    return [
      `${complete} -n __fish_use_subcommand -a ${command.name()} -d ${quote(command.description())}`,
      ...optionsOf(command).map(optionLine(condition)),
      ...command.registeredArguments.flatMap(argumentLine(condition)),
    ]
  })
  return `${[`# fish completion for ${program.name()}`, `${complete} -f`, ...optionsOf(program).map(optionLine('')), ...lines].join('\n')}\n`
}

function quote(text: string): string {
  return `'${text.replace(/[\\']/g, '\\$&')}'`
}
