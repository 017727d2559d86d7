/**
 * Requests that wait for a state of a resource (waiting.ts). A notification of the database causes one query for all
 * waits of a resource and account; no wait holds a connection to the database. A wait ends when the state is reached or
 * has become impossible, at its timeout, when the process stops, when its right ends, or when its client disconnects.
 */
import type { Socket } from 'node:net'
import { setImmediate as nextTurn } from 'node:timers/promises'
import pLimit from 'p-limit'
import type { Db } from '../../database/transaction.ts'
import { Places, type Holder } from '../../http/places.ts'
import { CoalescedWork } from '../../http/coalesced-work.ts'
import { refuse, Refusal } from '../../model/refusal.ts'

/**
 * One request. `read` reads the resource as its GET shows it. `isReached` throws a refusal if the state cannot be
 * reached. `checkRight` throws one if the right to read has ended. `timeoutRefusal` makes the refusal at the timeout.
 */
export interface MemberWait<Form> extends Holder {
  readonly resourceId: string
  readonly socket: Pick<Socket, 'once' | 'off' | 'setMaxListeners' | 'destroyed'>
  readonly timeoutMs: number
  readonly read: (db: Db) => Promise<Form>
  readonly isReached: (form: Form) => boolean
  readonly checkRight: () => Promise<void>
  readonly timeoutRefusal: () => Refusal
}

/** How waits end: `impossible`, the state cannot be reached any more; the others as above. */
export const WAIT_ENDS = ['reached', 'impossible', 'timeout', 'right', 'client', 'stop'] as const
export type WaitEnd = (typeof WAIT_ENDS)[number]

export interface MemberWaitsParts {
  readonly db: Db
  readonly onEnd: (reason: WaitEnd) => void
}

/** A request with what ends its wait: by a form or a refusal. Only the first call has an effect. */
interface PendingWait {
  readonly wait: MemberWait<unknown>
  readonly end: (reason: WaitEnd, result: unknown) => void
}

type Group = Set<PendingWait>

/** The most waits of an account, and of one of its clients, in a process. */
export const [WAITS_OF_ACCOUNT, WAITS_OF_CLIENT] = [1_000, 500]
/** How often the rights of all are checked. */
const CHECK_INTERVAL_MS = 15_000
/** Queries for waits that run at once, since others share their connections; and checks of rights. */
const [QUERIES_AT_ONCE, CHECKS_AT_ONCE] = [2, 2]
/** Responses that are made in one turn of the event loop. */
const DELIVERY_BATCH = 32
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

export class MemberWaits {
  readonly #db: Db
  readonly #places: Places<PendingWait, WaitEnd>
  /** By resource, then by account. */
  readonly #groups = new Map<string, Map<string, Group>>()
  readonly #reading = new CoalescedWork<Group>((group) => this.#readFor(group))
  readonly #queries = pLimit(QUERIES_AT_ONCE)
  readonly #checks = pLimit(CHECKS_AT_ONCE)
  readonly #interval: NodeJS.Timeout

  constructor({ db, onEnd }: MemberWaitsParts) {
    this.#db = db
    this.#places = new Places({ ofAccount: WAITS_OF_ACCOUNT, ofClient: WAITS_OF_CLIENT, beyond: TOO_MANY, onEnd })
    this.#interval = setInterval(() => void this.checkRights(), CHECK_INTERVAL_MS).unref()
  }

  get count(): number {
    return this.#places.ofAccount.size
  }

  /** Waits until the state is reached, and returns the resource as it is then. Rejects with a refusal otherwise. */
  until<Form>(wait: MemberWait<Form>): Promise<Form> {
    return new Promise((resolve, reject) => {
      const { accountId, resourceId, socket, timeoutMs } = wait
      const groups = this.#groups.get(resourceId) ?? new Map<string, Group>()
      const group = groups.get(accountId) ?? new Set<PendingWait>()
      const end: PendingWait['end'] = (reason, result) => {
        if (!group.delete(waiter)) return
        if (group.size === 0) groups.delete(accountId)
        if (groups.size === 0) this.#groups.delete(resourceId)
        leavePlace(reason)
        clearTimeout(timer)
        socket.off('close', leave)
        if (result instanceof Refusal) reject(result)
        else resolve(result as Form)
      }
      const waiter = { wait, end } as PendingWait
      const leavePlace = this.#places.take(wait, waiter)
      const leave = () => end('client', refuse('request_timeout', 'the client has gone'))
      const timer = setTimeout(() => end('timeout', wait.timeoutRefusal()), timeoutMs)
      socket.setMaxListeners(MAX_LISTENERS)
      socket.once('close', leave)
      group.add(waiter)
      this.#groups.set(resourceId, groups.set(accountId, group))
      if (socket.destroyed) leave() // it has closed while the resource was read: its event has passed
      else void this.#reading.run(group) // it may have changed since the request has read it
    })
  }

  /** A resource may have changed; undefined: any. */
  wake(resourceId?: string): void {
    const changed = resourceId === undefined ? [...this.#groups.values()] : [this.#groups.get(resourceId)]
    for (const groups of changed) for (const group of groups?.values() ?? []) void this.#reading.run(group)
  }

  /** Ends the waits whose right has ended. */
  async checkRights(): Promise<void> {
    await Promise.all(this.#places.ofAccount.all().map((waiter) => this.#checkRight(waiter).catch(() => undefined)))
  }

  /** Ends all waits as at their timeout: their clients ask again, and another process responds. */
  close(): void {
    this.#places.close()
    clearInterval(this.#interval)
    for (const { wait, end } of this.#places.ofAccount.all()) end('stop', wait.timeoutRefusal())
  }

  /** Reads it once for all present waits. Waits that begin later are served by the next read. */
  async #readFor(waiters: Group): Promise<boolean> {
    const served = await this.#queries(async () => {
      const present = [...waiters]
      return { present, result: await present[0]?.wait.read(this.#db).catch(refusalOrThrow) }
    })
    for (let i = 0; i < served.present.length; i += DELIVERY_BATCH) {
      if (i > 0) await nextTurn() // other requests are served between
      const some = served.present.slice(i, i + DELIVERY_BATCH)
      await Promise.all(some.map((waiter) => this.#deliver(waiter, served.result)))
    }
    return false
  }

  /** Ends a wait if what was read ends it. */
  async #deliver(waiter: PendingWait, result: unknown): Promise<void> {
    const { wait, end } = waiter
    let refusal: Refusal | undefined = result instanceof Refusal ? result : undefined
    try {
      if (refusal === undefined && !wait.isReached(result)) return
    } catch (error) {
      refusal = refusalOrThrow(error)
    }
    await this.#checkRight(waiter)
    end(refusal === undefined ? 'reached' : 'impossible', refusal ?? result)
  }

  async #checkRight({ wait, end }: PendingWait): Promise<void> {
    const refusal = await this.#checks(() => wait.checkRight().then(() => undefined, refusalOrThrow))
    if (refusal !== undefined) end('right', refusal)
  }
}

function refusalOrThrow(error: unknown): Refusal {
  if (error instanceof Refusal) return error as Refusal
  throw error
}
