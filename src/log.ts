/**
 * The daemon's log.
 *
 * JSON lines on standard output, for the journal; the demo prints lines for people where that is a terminal. error: one request failed;
 * fatal: the service stops; warn: an operator should look; info: the life of the service; debug: each request and each change. Tokens,
 * keys and user-data never stand in one (invariant 9): nothing logs them, and the redaction below is the net under that.
 */
import { pino, type DestinationStream, type Logger } from 'pino'

/** The levels that IMDS_LOG_LEVEL takes. */
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug'] as const
/** One of LOG_LEVELS. */
export type LogLevel = typeof LOG_LEVELS[number]

const SECRETS = ['password', 'userData', 'publicKeys', 'token', 'headers', 'document', 'command']

/** Builds the daemon's log. */
export function buildLog(level: LogLevel, destination: DestinationStream): Logger {
  return pino({
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    redact: { paths: SECRETS.flatMap((name) => [name, `*.${name}`]), censor: '[redacted]' },
  }, destination)
}

/** Standard output, written synchronously: the last line before an exit counts most. A full disk loses lines and stops nothing. */
export function standardOutput(): DestinationStream {
  return pino.destination({ dest: 1, sync: true, maxLength: 1 << 20 }).on('error', () => { /* nowhere to tell it */ })
}

/** Standard output for a person at a terminal. The formatter is loaded here alone: a daemon never needs it. */
export async function terminalOutput(): Promise<DestinationStream> {
  const { prettyFactory } = await import('pino-pretty')
  const format = prettyFactory({ translateTime: 'SYS:HH:MM:ss', singleLine: true })
  const output = standardOutput()
  return { write: (line) => { output.write(format(line)) } }
}
