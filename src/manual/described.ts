/** What manuals and completion need of a program's commands and options, as commander has them. */
import { Option, type Argument, type Command } from 'commander'

/** What can be completed in place of a value. */
export type Completable = 'files' | 'directories' | 'nothing'

/** The options of a command that its help shows, with that for help. */
export function optionsOf(command: Command): readonly Option[] {
  return command.createHelp().visibleOptions(command)
}

/** The name of an option's value, or undefined if it has none. */
export function valueNameOf({ flags }: Option): string | undefined {
  return /[<[]([^>\]]+)[>\]]$/.exec(flags)?.[1]
}

/** What can be completed as the value of an option, or as an argument. */
export function completableOf(value: Option | Argument): Completable {
  const name = value instanceof Option ? valueNameOf(value) : value.name()
  if (name === 'file' || name === 'path') return 'files'
  return name === 'directory' ? 'directories' : 'nothing'
}

/** The help of a command, as --help prints it for a terminal of 73 characters, without its list of commands. */
export function helpOf(command: Command): string {
  let text = ''
  const writeOut = (part: string) => {
    text += part
  }
  command
    .configureHelp({ visibleCommands: () => [], minWidthToWrap: 30 })
    .configureOutput({ writeOut, getOutHelpWidth: () => 73, getOutHasColors: () => false })
    .outputHelp()
  return text.trim()
}
