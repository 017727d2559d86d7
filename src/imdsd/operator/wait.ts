/**
 * Waits for the launch gate. Before a program starts a guest, it waits until this hypervisor's daemon serves the
 * instance and, if the firewall is required, until the firewall admits the guest.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ask, QUESTIONS } from './client.ts'

/**
 * What to wait for. `operator`: the daemon's unix socket for operators, `unix:/run/imds/operator.sock`, or its TCP
 * listener, `http://127.0.0.1:9169`.
 */
export interface WaitFor {
  readonly operator: string
  readonly id: string
  readonly revision: number
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
 * Resolves when the daemon serves `revision` of the instance or a later one, when it never can, or after the timeout.
 */
export async function waitForInstance({ operator, id, revision, timeoutMs }: WaitFor): Promise<Waited> {
  const deadline = performance.now() + timeoutMs
  let gate: Gate = { served: undefined, reason: 'it does not answer' }
  for (;;) {
    gate = (await askGate(operator, id, Math.max(1, deadline - performance.now()))) ?? gate
    const { served, reason, impossibleAt } = gate
    if (impossibleAt !== undefined && impossibleAt >= revision)
      return { kind: 'impossible', revision: impossibleAt, reason }
    if (served !== undefined && served >= revision) return { kind: 'answers', revision: served }
    if (performance.now() + POLL_MS >= deadline)
      return { kind: 'timeout', revision: served, reason: (await askReason(operator, id)) ?? reason }
    await sleep(POLL_MS)
  }
}

/**
 * The gate's last answer. `served`: the revision whose guest may be started; `impossibleAt`: the one whose guest never
 * can.
 */
interface Gate {
  readonly served: number | undefined
  readonly reason: string
  readonly impossibleAt?: number
}

/** Asks the gate once. Undefined if the time ran out first: the previous answer still applies then. */
async function askGate(operator: string, id: string, timeoutMs: number): Promise<Gate | undefined> {
  const answer = await ask(operator, QUESTIONS.instance(id, false), AbortSignal.timeout(Math.ceil(timeoutMs)))
  if (answer.kind === 'timeout') return undefined
  if (answer.kind === 'unreachable') return { served: undefined, reason: `it cannot be reached: ${answer.reason}` }
  if (answer.status === 404) return { served: undefined, reason: 'it does not know the instance' }
  if (answer.kind === 'refused') return { served: undefined, reason: `it answered with status ${answer.status}` }
  const { reason = '', final } = answer.value
  const revision = answer.value.revision ?? undefined
  if (answer.status === 200) return { served: revision, reason: `it serves revision ${String(revision)}` }
  return { served: undefined, reason, ...(final === true && revision !== undefined && { impossibleAt: revision }) }
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
