/** Completion for bash. Needs no other package. */
import type { Command } from 'commander'
import { completableOf, optionsOf, valueNameOf, type Completable } from './described.ts'

/** How readline completes what the function leaves to it. */
const BY_READLINE: Readonly<Record<Completable, string | undefined>> = {
  files: 'compopt -o default',
  directories: 'compopt -o dirnames',
  nothing: undefined,
}

export function bashCompletion(program: Command): string {
  const name = program.name()
  const { commands } = program
  const valued = (command: Command) => optionsOf(command).filter((option) => valueNameOf(option) !== undefined)
  const all = [...new Map([program, ...commands].flatMap(valued).map((option) => [option.flags, option])).values()]
  const flagsOf = (completable: Completable) =>
    all.filter((option) => completableOf(option) === completable).flatMap(({ short, long }) => [short, long])
  const functionName = `_${name.replaceAll('-', '_')}`
  return `# bash completion for ${name}

${functionName}() {
    local word=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD - 1]} command= options i
    COMPREPLY=()
    # bash splits --option=value into three words
    [[ $word == = ]] && word=
    [[ $previous == = ]] && previous=\${COMP_WORDS[COMP_CWORD - 2]}
    for ((i = 1; i < COMP_CWORD; i++)); do
        case \${COMP_WORDS[i]} in
            ${patternOf(all.flatMap(({ short, long }) => [short, long]))}) ((i++)) ;;
            ${patternOf(commands.map((command) => command.name()))}) command=\${COMP_WORDS[i]}; break ;;
        esac
    done
    case $previous in
${(['files', 'directories', 'nothing'] as const).flatMap((completable) => branch(flagsOf(completable), BY_READLINE[completable])).join('')}    esac
    if [[ $word == -* ]]; then
        options='${longOf(program).join(' ')}'
        case $command in
${commands.flatMap(optionBranch).join('')}        esac
        COMPREPLY=($(compgen -W "$options" -- "$word"))
        return
    fi
    case $command in
        '') COMPREPLY=($(compgen -W '${commands.map((command) => command.name()).join(' ')}' -- "$word")) ;;
${commands.flatMap(argumentBranch).join('')}    esac
}
complete -F ${functionName} ${name}
`
}

function longOf(command: Command): string[] {
  return optionsOf(command).map(({ long, short }) => long ?? short ?? '')
}

/** A branch that adds the options of a command, without --help, which all have. */
function optionBranch(command: Command): string[] {
  const own = longOf(command).filter((long) => long !== '--help')
  return own.length === 0 ? [] : [`            ${command.name()}) options+=' ${own.join(' ')}' ;;\n`]
}

/** A branch that ends the completion after an option: its value is completed by readline, or not at all. */
function branch(flags: readonly (string | undefined)[], command: string | undefined): string[] {
  if (flags.length === 0) return []
  return [`        ${patternOf(flags)}) ${command === undefined ? '' : `${command}; `}return ;;\n`]
}

function argumentBranch(command: Command): string[] {
  const completes = command.registeredArguments.map((argument) => BY_READLINE[completableOf(argument)])
  const [first] = completes.filter((completion) => completion !== undefined)
  return first === undefined ? [] : [`        ${command.name()}) ${first} ;;\n`]
}

/** A pattern of `case`. One that matches nothing, if there is none. */
function patternOf(words: readonly (string | undefined)[]): string {
  const present = words.filter((word) => word !== undefined)
  return present.length === 0 ? "''" : present.join('|')
}
