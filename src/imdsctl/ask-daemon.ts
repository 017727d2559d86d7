/** Asks a daemon over its operators' API. */
import { ask, parsedAnswer, type DaemonQuestion } from '../imdsd/operator/client.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'

/** The daemon asks the store for a second at most. */
const TIMEOUT_MS = 5_000

/** Returns the document with which the daemon at `operator` answers a question. Throws `absent` for status 404. */
export async function askDaemon<T>(operator: string, question: DaemonQuestion<T>, absent?: CommandFailure): Promise<T> {
  const got = await ask(operator, question, AbortSignal.timeout(TIMEOUT_MS))
  if (absent !== undefined && got.kind === 'refused' && got.status === 404) throw absent
  const read = parsedAnswer(got, operator)
  if (!read.ok) throw new CommandFailure(EXIT.unavailable, read.faults.join())
  return read.value
}
