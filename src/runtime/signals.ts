/**
 * What signals mean, for all programs; docs/operations/tools.md#signals has the table. Each entry imports this module
 * first: Node.js opens its debugger, to all local users, at a SIGUSR1 that nobody listens to.
 */
process.on('SIGUSR1', () => undefined)

/** They stop a program in order. SIGHUP is a terminal that closes. */
export const STOP_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** Aborted at the first of them. */
export function stopSignal(): AbortSignal {
  const stopping = new AbortController()
  for (const signal of STOP_SIGNALS) process.once(signal, () => stopping.abort())
  return stopping.signal
}
