/**
 * Waits for the launch gate. Before a program starts a guest, it waits until this hypervisor's daemon serves the
 * instance and, if the firewall is required, until the firewall admits the guest.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ask, QUESTIONS } from './client.ts'

/**
 * What to wait for. `order`: the place in the order of the region that the result of a publish has. It decides unless it
 * is 0 or absent; then `revision` does, of which there may be two after the store went back. `operator`: the daemon's
 * unix socket for operators, `unix:/run/imds/operator.sock`.
 */
export interface WaitFor {
  readonly operator: string
  readonly id: string
  readonly revision: number
  readonly order?: number
  readonly timeoutMs: number
}

/**
 * How a wait ended. `answers`: guests get this revision. `timeout`: with the revision that guests get now, if any, and
 * the reason. `impossible`: the guest can never be started with this revision.
 */
export type Waited =
  | { readonly kind: 'answers'; readonly revision: number }
  | { readonly kind: 'timeout'; readonly revision: number | undefined; readonly reason: string }
  | { readonly kind: 'impossible'; readonly revision: number; readonly reason: string }

const POLL_MS = 25
/** The daemon asks the store for a second at most. */
const REASON_TIMEOUT_MS = 1500

/**
 * Resolves when the daemon serves the publish that is waited for or a later publish, when it never can, or after the
 * timeout.
 */
export async function waitForInstance({ operator, id, revision, order = 0, timeoutMs }: WaitFor): Promise<Waited> {
  const deadline = performance.now() + timeoutMs
  const isAwaited = (at: Publish) => (order > 0 ? at.order >= order : at.revision >= revision)
  let gate: Gate = { reason: 'it does not answer' }
  for (;;) {
    gate = (await askGate(operator, id, Math.max(1, deadline - performance.now()))) ?? gate
    const { served, reason, impossibleAt } = gate
    if (impossibleAt !== undefined && isAwaited(impossibleAt))
      return { kind: 'impossible', revision: impossibleAt.revision, reason }
    if (served !== undefined && isAwaited(served)) return { kind: 'answers', revision: served.revision }
    if (performance.now() + POLL_MS >= deadline)
      return { kind: 'timeout', revision: served?.revision, reason: (await askReason(operator, id)) ?? reason }
    await sleep(POLL_MS)
  }
}

interface Publish {
  readonly revision: number
  readonly order: number
}

/** The gate's last answer. `served`: that whose guest may be started; `impossibleAt`: that whose guest never can. */
interface Gate {
  readonly served?: Publish
  readonly reason: string
  readonly impossibleAt?: Publish
}

/** Asks the gate once. Undefined if the time ran out first: the previous answer still applies then. */
async function askGate(operator: string, id: string, timeoutMs: number): Promise<Gate | undefined> {
  const answer = await ask(operator, QUESTIONS.instance(id, false), AbortSignal.timeout(Math.ceil(timeoutMs)))
  if (answer.kind === 'timeout') return undefined
  if (answer.kind === 'unreachable') return { reason: `it cannot be reached: ${answer.reason}` }
  if (answer.status === 404) return { reason: 'it does not know the instance' }
  if (answer.kind === 'refused') return { reason: `it answered with status ${answer.status}` }
  const { reason = '', final, revision, order = 0 } = answer.value
  if (typeof revision !== 'number') return { reason }
  const at = { revision, order }
  if (answer.status === 200) return { served: at, reason: `it serves revision ${revision}` }
  return { reason, ...(final === true && { impossibleAt: at }) }
}

/**
 * The daemon's reason; undefined if there is none. It is requested only once, because the daemon may ask the store for
 * it.
 */
async function askReason(operator: string, id: string): Promise<string | undefined> {
  const answer = await ask(operator, QUESTIONS.instance(id, true), AbortSignal.timeout(REASON_TIMEOUT_MS))
  if (answer.kind !== 'answered' || answer.value.reason === undefined) return undefined
  const { reason, revision } = answer.value
  return typeof revision === 'number' ? `it has revision ${revision}; ${reason}` : reason
}
