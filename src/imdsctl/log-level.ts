/** `imdsctl log-level`: prints the level of the daemon's log, or changes it for some time. */
import { QUESTIONS } from '../imdsd/operator/client.ts'
import { parseDuration } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { formatLevel, LEVEL_SECONDS, LOG_LEVELS } from '../runtime/log-level.ts'
import type { Output } from '../runtime/output.ts'
import { askDaemon } from './ask-daemon.ts'

/** Prints the level, after setting it to `name`, if that is given, for the time in `duration`. */
export async function logLevel(
  output: Output,
  name: string | undefined,
  { operator, for: duration }: { readonly operator: string; readonly for?: string },
): Promise<void> {
  const level = LOG_LEVELS.find((one) => one === name)
  const seconds = duration === undefined ? LEVEL_SECONDS.default : parseDuration(duration)
  if (name !== undefined && level === undefined)
    throw new CommandFailure(EXIT.usage, `"${name}" is not a level: ${LOG_LEVELS.join(', ')}`)
  if (seconds === undefined || seconds > LEVEL_SECONDS.max)
    throw new CommandFailure(EXIT.usage, `"${String(duration)}" is not a time of at most a day, such as 30s, 10m or 2h`)
  if (duration !== undefined && level === undefined)
    throw new CommandFailure(EXIT.usage, '--for is for a level: imdsctl log-level debug --for 10m')
  const read = await askDaemon(
    operator,
    QUESTIONS.logLevel(level && { level, seconds }),
    new CommandFailure(EXIT.usage, `the level of the log is on the daemon's unix socket only, not at ${operator}`),
  )
  output.result(read, formatLevel(read, Date.now()))
}
