/** Completion for zsh. */
import type { Argument, Command, Option } from 'commander'
import { completableOf, optionsOf, valueNameOf, type Completable } from './described.ts'

const ACTIONS: Readonly<Record<Completable, string>> = { files: '_files', directories: '_files -/', nothing: ' ' }

export function zshCompletion(program: Command): string {
  const name = program.name()
  const common = optionsOf(program).flatMap(optionSpecs)
  const { commands } = program
  if (commands.length === 0) return `#compdef ${name}\n\n${argumentsOf(2, common)}`
  const described = commands.map((command) => quote(`${command.name()}:${command.description()}`))
  const cases = commands.map((command) => {
    const specs = [...optionsOf(command).flatMap(optionSpecs), ...command.registeredArguments.map(argumentSpec)]
    return `    ${command.name()})\n${argumentsOf(6, ['$common', ...specs])}      ;;\n`
  })
  return `#compdef ${name}

local curcontext=$curcontext state line
typeset -A opt_args
local -a common commands
common=(
${common.map((spec) => `  ${spec}\n`).join('')})
_arguments -C $common '1: :->command' '*:: :->arguments'
case $state in
  command)
    commands=(
${described.map((line) => `      ${line}\n`).join('')}    )
    _describe -t commands command commands
    ;;
  arguments) case $line[1] in
${cases.join('')}  esac ;;
esac
`
}

function argumentsOf(indent: number, specs: readonly string[]): string {
  const space = ' '.repeat(indent)
  return `${space}_arguments ${specs.map((spec) => `\\\n${space}  ${spec}`).join(' ')}\n`
}

function optionSpecs(option: Option): string[] {
  const { short, long, description } = option
  const forms = [short, long].filter((form) => form !== undefined)
  const value = valueNameOf(option)
  const rest = value === undefined ? '' : `:${value}:${ACTIONS[completableOf(option)]}`
  const excludes = forms.length > 1 ? `(${forms.join(' ')})` : ''
  return forms.map((form) => {
    const separator = value === undefined ? '' : form.startsWith('--') ? '=' : '+'
    return quote(`${excludes}${form}${separator}[${description.replace(/[\\[\]]/g, '\\$&')}]${rest}`)
  })
}

function argumentSpec(argument: Argument): string {
  return quote(
    `${argument.variadic ? '*' : argument.required ? '' : ':'}:${argument.name()}:${ACTIONS[completableOf(argument)]}`,
  )
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}
