/** Waits for a signature that a request needs. Node's thread pool makes it. */
import type { Log } from '../../runtime/log-codes.ts'
import {
  ADDRESS_LOST,
  refused,
  type Exchange,
  type PendingRequest,
  type RequestResult,
  type Steps,
} from './exchange.ts'
import { idOf } from './identify.ts'

/** The longest wait, in ms. Only a flood of signatures, or a disk that blocks the threads, takes so long. */
const WAIT_MS = 1_000

/** The result of a request with a signature. Never rejects: a failure is logged, and the guest gets 503. */
export async function awaitContent(
  { content, route, ttlSeconds, giveUp }: PendingRequest,
  log: Log,
): Promise<RequestResult> {
  const late = Promise.withResolvers<'late'>()
  const timer = setTimeout(() => late.resolve('late'), WAIT_MS)
  try {
    const made = await Promise.race([content, late.promise])
    if (made === 'late') {
      giveUp?.()
      return refused('not-signed', route, ttlSeconds)
    }
    return made === undefined
      ? refused('not-found', route, ttlSeconds)
      : { kind: 'served', route, content: made, ttlSeconds }
  } catch (error) {
    log.error({ code: 'signing-failed', err: error }, 'signing failed; the guest gets 503')
    return refused('not-signed', route, ttlSeconds)
  } finally {
    clearTimeout(timer)
  }
}

/** Waits for the content, and then checks again whether the guest may have the content. */
export async function awaitAndRecheck(
  exchange: Exchange,
  pending: PendingRequest,
  steps: Pick<Steps, 'findAgain' | 'authorizeAgain'>,
  log: Log,
): Promise<RequestResult> {
  const result = await awaitContent(pending, log)
  const found = steps.findAgain(exchange)
  if (idOf(found) !== idOf(exchange.found)) return ADDRESS_LOST
  return steps.authorizeAgain({ ...exchange, found }) ?? result
}
