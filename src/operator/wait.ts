/**
 * The launch gate: whoever starts a guest first waits until this hypervisor's daemon answers for it, and the firewall
 * lets it in where it has to.
 */

/** What to wait for. `operator` is the daemon's operators' listener: `http://127.0.0.1:9169`. */
export interface WaitFor { readonly operator: string, readonly id: string, readonly revision: number, readonly timeoutMs: number }

/**
 * How a wait ended: the revision that is answered for; the time is over (with the revision of now, if any, and the last error); or the guest can
 * never be started with this record, and why.
 */
export type Waited =
  | { readonly result: 'answers', readonly revision: number }
  | { readonly result: 'timeout', readonly revision: number | null, readonly reason: string }
  | { readonly result: 'impossible', readonly revision: number, readonly reason: string }

const POLL_MS = 25
/** The daemon asks the store for a second at most. */
const REASON_MS = 1500

/** Resolves once the daemon answers for `revision` of the instance or a later one, or never can, or when the time is over. */
export async function waitForInstance({ operator, id, revision, timeoutMs }: WaitFor): Promise<Waited> {
  const deadline = performance.now() + timeoutMs
  let told: RecordHealth = { held: null, reason: 'it does not answer' }
  for (;;) {
    told = await ask(operator, id, Math.max(1, deadline - performance.now())) ?? told
    const { held, reason, impossibleAt } = told
    if (impossibleAt !== undefined && impossibleAt >= revision) return { result: 'impossible', revision: impossibleAt, reason }
    if (held !== null && held >= revision) return { result: 'answers', revision: held }
    if (performance.now() + POLL_MS >= deadline) return { result: 'timeout', revision: held, reason: await why(operator, id) ?? reason }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS))
  }
}

/** What the daemon says of the cause, asked once since it may ask the store; null where it does not say. */
async function why(operator: string, id: string): Promise<string | null> {
  try {
    const response = await fetch(new URL(`/instances/${id}?reason`, operator), { signal: AbortSignal.timeout(REASON_MS) })
    const { reason, revision } = await response.json() as { reason?: string, revision: number | null }
    if (reason === undefined) return null
    return revision === null ? reason : `it has revision ${String(revision)}; ${reason}`
  } catch {
    return null
  }
}

/** `impossibleAt`: the revision with which the guest can never be started. */
interface RecordHealth { readonly held: number | null, readonly reason: string, readonly impossibleAt?: number }

/** What the daemon says, or null when the time was over first: what it said before stands then. */
async function ask(operator: string, id: string, timeoutMs: number): Promise<RecordHealth | null> {
  try {
    const response = await fetch(new URL(`/instances/${id}`, operator), { signal: AbortSignal.timeout(Math.ceil(timeoutMs)) })
    if (response.status === 200) {
      const { revision } = await response.json() as { revision: number }
      return { held: revision, reason: `it answers for revision ${String(revision)}` }
    }
    if (response.status === 409) {
      const { reason, revision, final } = await response.json() as { reason: string, revision: number, final?: true }
      return { held: null, reason, ...final === true && { impossibleAt: revision } }
    }
    await response.arrayBuffer()
    return { held: null, reason: response.status === 404 ? 'it does not know the instance' : `it said ${String(response.status)}` }
  } catch (error) {
    if ((error as Error).name === 'TimeoutError') return null
    return { held: null, reason: `it cannot be asked: ${String((error as { cause?: Error }).cause?.message ?? error)}` }
  }
}
