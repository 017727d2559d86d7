/**
 * Requests that wait: for an event of an account (events.ts), or a state of a resource (waiting.ts). A notification of the
 * database wakes those of its account and of its resource. Each reads again in a turn of its account, so an account with
 * many delays only itself; while it waits, it has no turn and no connection to the database.
 */
import type { FastifyRequest } from 'fastify'
import { ByOwner } from '../../../limits/by-owner.ts'
import { Waiters } from '../../../limits/waiters.ts'
import { accountOf } from '../../auth/caller.ts'
import { Refusal } from '../../model/refusal.ts'

/** The most requests of an account, and of one of its clients, that wait in a process. */
export const [WAITS_OF_ACCOUNT, WAITS_OF_CLIENT] = [1_000, 500]
/** How often each request checks that its token is not revoked. */
export const CHECK_INTERVAL_MS = 15_000
/** Of a socket: requests that are sent without waiting for responses share it, 16 at most (http/connections.ts). */
const MAX_LISTENERS = 32
const TOO_MANY = new Refusal(
  'too_many_requests',
  [
    `${WAITS_OF_ACCOUNT} requests of an account may wait, and ${WAITS_OF_CLIENT} of each of ` +
      'its clients: try again when one has ended',
  ],
  { retrySeconds: 1 },
)

export class Waits {
  /** By what they wait for: an account, or a resource. */
  readonly #waiters = new Waiters()
  /** By account, and by account and client. */
  readonly #callers = new ByOwner<object>()
  readonly #checkIntervalMs: number

  /** A request reads again after `checkIntervalMs` at the latest. */
  constructor(checkIntervalMs: number) {
    this.#checkIntervalMs = checkIntervalMs
  }

  get count(): number {
    return this.#waiters.size
  }

  /** An account or a resource has changed; an empty name: any. */
  wake(name: string): void {
    this.#waiters.wake(name)
  }

  /** Ends all waits as at their timeout: their clients ask again, and another process responds. */
  close(): void {
    this.#waiters.close()
  }

  /**
   * Reads until there is a result, again at each wake of `name`. Undefined: there is none after the time, the client has
   * gone, or the process stops. Rejects with a refusal if the right to read has ended (401, 403), or there are too many
   * waits (429).
   */
  async until<Result>(
    request: FastifyRequest,
    { name, seconds }: { readonly name: string; readonly seconds: number },
    read: () => Promise<Result | undefined>,
  ): Promise<Result | undefined> {
    const accountId = accountOf(request)
    const client = `${accountId} ${request.caller.id}`
    if (this.#callers.countOf(accountId) >= WAITS_OF_ACCOUNT || this.#callers.countOf(client) >= WAITS_OF_CLIENT)
      throw TOO_MANY
    const { socket } = request.raw
    const wait = {}
    for (const caller of [accountId, client]) this.#callers.add(caller, wait)
    socket.setMaxListeners(MAX_LISTENERS)
    request.share.leave()
    const times = { waitMs: seconds * 1_000, pollMs: this.#checkIntervalMs }
    try {
      return await this.#waiters.until(name, socket, times, () => readInTurn(request, read))
    } finally {
      for (const caller of [accountId, client]) this.#callers.remove(caller, wait)
    }
  }
}

async function readInTurn<Result>(request: FastifyRequest, read: () => Promise<Result>): Promise<Result> {
  const leave = await request.share.again()
  try {
    await request.accounts.check()
    return await read()
  } finally {
    leave()
  }
}
