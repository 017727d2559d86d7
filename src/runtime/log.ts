/**
 * The log of each service: JSON lines on standard output, for the journal. On a terminal the demo prints readable
 * lines.
 *
 * fatal: the service stops. error: one request failed. warn: an operator should look. info: the life of the service.
 * debug: each request and each change. Tokens, keys and user-data are never logged (invariant 9); the redaction below
 * is a second barrier.
 */
import { pino, type DestinationStream } from 'pino'
import { escapeControls, escapeJsonLine } from './terminal.ts'
import type { Log, LogCode } from './log-codes.ts'
import type { LogLevel } from './variables.ts'
import { buildLogOutput, isJournal, neverBlock } from './log-output.ts'

const STDOUT = 1
const SECRETS = ['password', 'userData', 'publicKeys', 'token', 'headers', 'document', 'command']

export function buildLog(level: LogLevel, destination: DestinationStream): Log {
  return pino(
    {
      level,
      base: {},
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      hooks: { streamWrite: escapeJsonLine },
      redact: { paths: SECRETS.flatMap((name) => [name, `*.${name}`]), censor: '[redacted]' },
    },
    destination,
  )
}

/**
 * The priorities of systemd's journal (sd-daemon(3)) for pino's levels, which are numbers. `<4>` at the beginning of a
 * line sets that of the line.
 */
const PRIORITIES: Readonly<Record<number, string>> = { 60: '<2>', 50: '<3>', 40: '<4>', 30: '<6>', 20: '<7>' }

/**
 * Standard output. `journalStream` is the variable JOURNAL_STREAM: if the journal reads the output, each line begins
 * with its priority, which the journal removes. The last lines are flushed at exit.
 */
export function standardOutput(journalStream: string | undefined): DestinationStream {
  const hasPriorities = isJournal(journalStream, STDOUT)
  const prefix = (level: number) => (hasPriorities ? (PRIORITIES[level] ?? '') : '')
  neverBlock(STDOUT, () => process.stdout)
  const formatLost = (lines: number) => {
    const line = {
      level: 'warn',
      code: 'log-lines-lost' satisfies LogCode,
      time: new Date().toISOString(),
      lines,
      msg: 'log lines were lost, because the reader of standard output did not keep up',
    }
    return `${prefix(40)}${JSON.stringify(line)}\n`
  }
  const output = buildLogOutput(STDOUT, formatLost)
  process.on('exit', () => output.flushSync())
  return {
    [Symbol.for('pino.metadata')]: true, // so that pino sets lastLevel
    lastLevel: 0,
    write(line: string) {
      output.write(`${prefix(this.lastLevel)}${line}`)
    },
    flushSync: () => output.flushSync(),
  } as DestinationStream & { lastLevel: number }
}

/** Standard output for a person at a terminal. Loads the formatter only here, because a daemon does not need it. */
export async function terminalOutput(): Promise<DestinationStream> {
  const { prettyFactory } = await import('pino-pretty')
  const format = prettyFactory({ translateTime: 'SYS:HH:MM:ss', singleLine: true })
  const output = standardOutput(undefined)
  return {
    write: (line) => {
      // the formatter would write control characters of records to the terminal
      const escape = (_name: string, value: unknown) =>
        typeof value === 'string' ? escapeControls(value, true) : value
      output.write(format(JSON.parse(line, escape) as object))
    },
  }
}
