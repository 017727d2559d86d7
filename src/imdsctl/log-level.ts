/** `imdsctl log-level`: prints the level of the daemon's log, or changes it for some time. */
import { getLogLevel, valueOf } from '../imdsd/operator/client.ts'
import { parseDuration } from '../runtime/ago.ts'
import { EXIT } from '../runtime/exit-status.ts'
import { formatLevel, LEVEL_SECONDS, LOG_LEVELS } from '../runtime/log-level.ts'
import type { Output } from '../runtime/output.ts'
import { CommandFailure } from './failure.ts'

const TIMEOUT_MS = 5_000

/** Prints the level, after setting it to `name`, if that is given, for the time in `duration`. */
export async function logLevel(
  output: Output,
  name: string | undefined,
  { operator, for: duration }: { readonly operator: string; readonly for?: string },
): Promise<void> {
  const level = LOG_LEVELS.find((one) => one === name)
  const seconds = duration === undefined ? LEVEL_SECONDS.usual : parseDuration(duration)
  if (name !== undefined && level === undefined)
    throw new CommandFailure(EXIT.usage, `"${name}" is not a level: ${LOG_LEVELS.join(', ')}`)
  if (seconds === undefined || seconds > LEVEL_SECONDS.most)
    throw new CommandFailure(EXIT.usage, `"${String(duration)}" is not a time of at most a day, such as 30s, 10m or 2h`)
  if (duration !== undefined && level === undefined)
    throw new CommandFailure(EXIT.usage, '--for is for a level: imdsctl log-level debug --for 10m')
  const got = await getLogLevel(operator, level && { level, seconds }, AbortSignal.timeout(TIMEOUT_MS))
  if (got.kind === 'refused' && got.status === 404)
    throw new CommandFailure(EXIT.usage, `the level of the log is on the daemon's unix socket only, not at ${operator}`)
  const read = valueOf(got, operator)
  if (!read.ok) throw new CommandFailure(EXIT.unavailable, read.faults.join())
  output.result(read.value, formatLevel(read.value, Date.now()))
}
