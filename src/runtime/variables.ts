/**
 * The configuration of a program as a table of environment variables. The program parses the environment by it and
 * prints it for --help; docs/configuration.md is generated from it.
 */
import type { Parsed } from '../metadata/parsed.ts'
import { parseAddressPort, parseUnixSocket, type HostPort, type ListenAddress } from './host-port.ts'

export type Environment = Readonly<Record<string, string | undefined>>

/** Parses the text of a variable. A fault continues the variable's name. */
type TextParser<T> = (text: string) => Parsed<T, string>

/**
 * A row of the table. `default` is a text, parsed like one that is set; undefined: the variable is absent, which is a
 * fault if there is a `required`, which says what to do. `needs`: variables that must be set beside it.
 */
export interface Variable<T = unknown> {
  readonly default?: string
  readonly required?: string
  readonly needs?: readonly string[]
  readonly parse: TextParser<T>
  readonly help: string
}
type Rows = Readonly<Record<string, Variable>>

/** The variables of a program by name. `section` is a heading in --help and in docs/configuration.md. */
export type VariableTable = Readonly<Record<string, Variable & { readonly section: string }>>

/** The parsed values of a table. */
export type Values<T extends Rows> = {
  readonly [K in keyof T]: T[K] extends Variable<infer V>
    ? V | (T[K] extends { readonly default: string } | { readonly required: string } ? never : undefined)
    : never
}

export interface VariableFault {
  readonly variable: string
  readonly message: string
}

export type AddFault<Name extends string> = (variable: Name, message: string) => void

/** A configuration. `unknown`: variables of the program that do not exist, for a warning. */
export type ParsedVariables<Config> =
  | { readonly ok: true; readonly value: Config; readonly unknown: readonly string[] }
  | { readonly ok: false; readonly faults: readonly VariableFault[] }

export function section<T extends Rows>(
  name: string,
  rows: T,
): { readonly [K in keyof T]: T[K] & { readonly section: string } } {
  const entries = Object.entries(rows).map(([variable, row]) => [variable, { ...row, section: name }])
  return Object.fromEntries(entries) as ReturnType<typeof section<T>>
}

/** The variables that are set: an empty text counts as not set. */
export function setVariables(env: Environment): Environment {
  return Object.fromEntries(Object.entries(env).filter(([, text = '']) => text.trim() !== ''))
}

/** The text of a variable, or its default. An empty text counts as not set. */
export function textOf(table: Rows, env: Environment, variable: string): string | undefined {
  const text = env[variable]?.trim()
  return text === undefined || text === '' ? table[variable]?.default : text
}

/** An environment that is being parsed. */
export interface Reading<T extends Rows> {
  /** A variable with an invalid text has the value of its default, so that checks of several variables can follow. */
  readonly values: Values<T>
  /** Reports what such a check finds. Ignored for a variable that has been reported already, with its text. */
  readonly fault: AddFault<keyof T & string>
  /** Ends the parsing: with the faults if there are any, or if there is no configuration. */
  readonly result: <Config>(config: Config | undefined) => ParsedVariables<Config>
}

/** Parses every variable of a table. `own` matches the names of this program, to find unknown ones. */
export function readVariables<T extends Rows>(table: T, env: Environment, own: RegExp): Reading<T> {
  const faults: VariableFault[] = []
  const values = Object.entries(table).map(([variable, { parse, default: otherwise, required }]) => {
    const text = textOf(table, env, variable)
    const parsed = text === undefined ? undefined : parse(text)
    if (text === undefined && required !== undefined) faults.push({ variable, message: `is not set: ${required}` })
    if (parsed?.ok !== false) return [variable, parsed?.value]
    faults.push(...parsed.faults.map((message) => ({ variable, message })))
    const usual = otherwise === undefined ? undefined : parse(otherwise)
    return [variable, usual?.ok === true ? usual.value : undefined]
  })
  const invalid = new Set(faults.map(({ variable }) => variable))
  for (const [variable, { needs = [] }] of Object.entries(table)) {
    const missing = needs.filter((other) => textOf(table, env, other) === undefined && !invalid.has(other))
    if (textOf(table, env, variable) === undefined) continue
    for (const other of missing) {
      faults.push({ variable: other, message: `is not set: ${variable} needs it` })
      invalid.add(other)
    }
  }
  const unknown = Object.keys(env).filter((variable) => own.test(variable) && !(variable in table))
  return {
    values: Object.fromEntries(values) as Values<T>,
    fault: (variable, message) => {
      if (!invalid.has(variable)) faults.push({ variable, message })
    },
    result: (config) =>
      faults.length > 0 || config === undefined
        ? { ok: false, faults: [...faults, ...unknown.map((variable) => ({ variable, message: 'is unknown' }))] }
        : { ok: true, value: Object.freeze(config), unknown },
  }
}

/** The table as text for --help. */
export function describeVariables(table: VariableTable): string {
  const width = Math.max(...Object.keys(table).map(({ length }) => length))
  const sections = Map.groupBy(Object.entries(table), ([, row]) => row.section)
  return [...sections]
    .map(([name, rows]) => {
      const lines = rows.map(([variable, { help, default: otherwise = '' }]) => {
        const ending = otherwise === '' ? '' : ` (default: ${otherwise})`
        return `  ${variable.padEnd(width)}  ${help}${ending}`
      })
      return [`${name}:`, ...lines].join('\n')
    })
    .join('\n')
}

export const anyText: TextParser<string> = (value) => ({ ok: true, value })

/** The parts of a text with commas between them. */
export function list(value: string): string[] {
  return value
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
}

/** A parser of texts for which `test` is true. */
export function matching(test: (value: string) => boolean, message: string): TextParser<string> {
  return (value) => (test(value) ? { ok: true, value } : { ok: false, faults: [message] })
}

/** A parser of texts in which `faultOf` finds nothing. */
export function checked(faultOf: (value: string) => string | undefined): TextParser<string> {
  return (value) => {
    const fault = faultOf(value)
    return fault === undefined ? { ok: true, value } : { ok: false, faults: [fault] }
  }
}

export function oneOf<T extends string>(words: readonly T[]): TextParser<T> {
  return (text) => {
    const value = words.find((word) => word === text)
    return value === undefined ? { ok: false, faults: [`must be one of ${words.join(', ')}`] } : { ok: true, value }
  }
}

export function whole(least: number, most: number): TextParser<number> {
  const fault = `must be a whole number from ${least} to ${most}, in decimal digits`
  return (text) => {
    const value = parseWhole(text, least, most)
    return value === undefined ? { ok: false, faults: [fault] } : { ok: true, value }
  }
}

/** The parser of a list of which each part passes `test`. */
export function listOf(test: (part: string) => boolean, message: string): TextParser<readonly string[]> {
  return (text) => {
    const value = list(text)
    const faults = value.filter((part) => !test(part)).map((part) => `"${part}" ${message}`)
    return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
  }
}

export function addressPort(example: string): TextParser<HostPort> {
  return (text) => {
    const value = parseAddressPort(text)
    return value === undefined
      ? { ok: false, faults: [`must be ADDRESS:PORT, such as ${example}`] }
      : { ok: true, value }
  }
}

/** `example`: how one is written. */
export function listenAddress(example: string): TextParser<ListenAddress> {
  return (text) => {
    const value = parseUnixSocket(text) ?? parseAddressPort(text)
    const fault = `"${text}" is not ADDRESS:PORT or unix:PATH, such as ${example}`
    return value === undefined ? { ok: false, faults: [fault] } : { ok: true, value }
  }
}

/** The values of IMDS_LOG_LEVEL and IMDS_API_LOG_LEVEL, the quietest first. log.ts says what each shows. */
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]

export const absolutePath = matching((path) => path.startsWith('/'), 'must be an absolute path')

/**
 * Parses a whole number of a variable or an option, from `least` to `most`. Undefined for any other text: with a sign,
 * a fraction, an exponent or a leading zero, or in another base, since some readers take 010 for 8 and 0x10 for 0.
 */
export function parseWhole(text: string, least: number, most: number): number | undefined {
  const value = /^(?:0|[1-9]\d*)$/.test(text) ? Number(text) : NaN
  return value >= least && value <= most ? value : undefined
}
