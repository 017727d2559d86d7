/**
 * What does a log line mean?
 *
 * JSON lines on standard output, for the journal. error: one request failed; fatal: the service stops; warn: an operator should look;
 * info: the life of the service; debug: each request and each change. Tokens, keys and user-data never stand in one (invariant 9):
 * nothing logs them, and the redaction below is the net under that.
 */
import { pino, type DestinationStream, type Logger } from 'pino'

/** The levels that IMDS_LOG_LEVEL takes. */
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug'] as const
/** One of LOG_LEVELS. */
export type LogLevel = typeof LOG_LEVELS[number]

const SECRETS = ['password', 'userData', 'publicKeys', 'token', 'headers', 'document', 'command']

/** Builds the daemon's log. `destination` defaults to standard output, written synchronously: the last line before an end counts most. */
export function buildLog(level: LogLevel, destination: DestinationStream = standardOutput()): Logger {
  return pino({
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    redact: { paths: SECRETS.flatMap((name) => [name, `*.${name}`]), censor: '[redacted]' },
  }, destination)
}

/** A full disk behind standard output loses lines; it is no reason to leave the guests alone. */
function standardOutput(): DestinationStream {
  return pino.destination({ dest: 1, sync: true, maxLength: 1 << 20 }).on('error', () => { /* nowhere to tell it */ })
}
