/**
 * The daemon's log: JSON lines on standard output, for the journal. On a terminal the demo prints readable lines.
 *
 * fatal: the service stops. error: one request failed. warn: an operator should look. info: the life of the service. debug: each request and each
 * change. Tokens, keys and user-data are never logged (invariant 9); the redaction below is a second barrier.
 */
import { pino, type DestinationStream, type Logger } from 'pino'

/** The values of IMDS_LOG_LEVEL. */
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug'] as const
/** One of LOG_LEVELS. */
export type LogLevel = typeof LOG_LEVELS[number]

const SECRETS = ['password', 'userData', 'publicKeys', 'token', 'headers', 'document', 'command']

/** Builds the daemon's log. */
export function buildLog(level: LogLevel, destination: DestinationStream): Logger {
  return pino({
    level,
    base: {},
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    redact: { paths: SECRETS.flatMap((name) => [name, `*.${name}`]), censor: '[redacted]' },
  }, destination)
}

/** Standard output, written synchronously, so that the last line before an exit is not lost. A full disk loses lines and stops nothing. */
export function standardOutput(): DestinationStream {
  return pino.destination({ dest: 1, sync: true, maxLength: 1 << 20 }).on('error', () => { /* there is nowhere to report it */ })
}

/** Standard output for a person at a terminal. Loads the formatter only here, because a daemon does not need it. */
export async function terminalOutput(): Promise<DestinationStream> {
  const { prettyFactory } = await import('pino-pretty')
  const format = prettyFactory({ translateTime: 'SYS:HH:MM:ss', singleLine: true })
  const output = standardOutput()
  return { write: (line) => { output.write(format(line)) } }
}
