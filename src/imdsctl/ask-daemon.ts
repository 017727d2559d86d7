/** Asks a daemon over its operators' API. */
import { valueOf, type Answer } from '../imdsd/operator/client.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'

/** The daemon asks the store for a second at most. */
const TIMEOUT_MS = 5_000

/** Returns the document that `get` receives from the daemon at `operator`. Throws `absent` for status 404. */
export async function askDaemon<T>(
  operator: string,
  get: (signal: AbortSignal) => Promise<Answer<T>>,
  absent?: CommandFailure,
): Promise<T> {
  const got = await get(AbortSignal.timeout(TIMEOUT_MS))
  if (absent !== undefined && got.kind === 'refused' && got.status === 404) throw absent
  const read = valueOf(got, operator)
  if (!read.ok) throw new CommandFailure(EXIT.unavailable, read.faults.join())
  return read.value
}
