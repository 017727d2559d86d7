/** Runs the changes of accounts' resources. The changes of one account run one after another. */
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { FairQueue, type FairQueueLimits } from '../../limits/fair-queue.ts'
import { isWithdrawal, changeRefusal, type StateRule } from '../model/account-states.ts'
import { notFound, shed, type Refusal } from '../model/refusal.ts'
import { setOrigin, type ChangeOrigin } from './events.ts'
import { inFlightRefusal, KeyedChange, type KeyOfClient } from './keyed-change.ts'
import { lockAccount, type LockedAccount } from './limits.ts'
import { PLAN_BY_INDEX } from '../database/prepared.ts'
import { codeOf, inTransaction, type Tx, type Db } from '../database/transaction.ts'

/**
 * Limits of an account's queue: wait in ms, length in bytes. It holds fewer bytes than the bodies of an account may
 * have (body-budget.ts), so that new requests can still arrive.
 */
export const ACCOUNT_QUEUE = { atOnce: 1, maxWaiting: 8 * 2 ** 20, timeoutMs: 10_000 } satisfies FairQueueLimits
/** The share of all changes in the connections for requests. Reads have three quarters (http/read-share.ts). */
const SHARE = 1 / 4
/**
 * A change waits this long for a lock, then leaves its connection to the changes of other accounts, and is tried again.
 * The locks may be those of a process that was stopped: PostgreSQL ends its transaction (database/open.ts).
 */
const [LOCK_WAIT_MS, LOCK_PAUSE_MS, LOCK_TRIES] = [250, 50, 30]
const LOCK_NOT_AVAILABLE = '55P03'
/** The bytes that a waiting change costs beside its body. So 1,024 changes can wait. */
export const CHANGE_BYTES = 8_192

/** Who asks for a change, and by which request. */
export interface Requester {
  /** The id of the user or API client. The requesters of an account take turns. */
  readonly requesterId: string
  readonly requestId: string
  readonly bodyBytes: number
  /** Its Idempotency-Key, if it has one. */
  readonly key: KeyOfClient | undefined
  /**
   * Refuses the change if the requester has lost the right while it waited. Runs in the transaction of the change, with
   * the account locked, if it is one of an account: the right cannot be revoked before the commit.
   */
  readonly recheckRight: (tx: Tx, account?: LockedAccount) => Promise<void>
  /** Refuses a change whose `If-Match` does not hold. A replay of a committed change is not checked. */
  readonly checkCondition: (tx: Tx) => Promise<void>
}

/** The requester of what hypervisors report. */
const COMPUTE = { requesterId: 'compute', bodyBytes: 0 }

/** The refusal of an account that makes changes faster than they are published. */
function backlogRefusal({ has_too_many_unpublished: isBehind }: LockedAccount): Refusal | undefined {
  if (isBehind !== true) return undefined
  return shed('changes', 'too many changes of this account wait to be published: try again later')
}

function originOf({ requesterId, requestId, key }: Requester): ChangeOrigin {
  return { actor: requesterId, requestId, key: key?.key ?? '' }
}

/**
 * The changes of all accounts. A change takes a connection to the database only at its turn, so each process uses at
 * most one connection per account for changes, and for all of them a share of its connections. It then locks the
 * account's row, which excludes other processes. So the changes of an account cannot deadlock, and what a change has
 * checked (the right of the requester, the state of the account, a destination, a limit) stays true until the commit.
 *
 * Revocations of access go first; every second turn is for the other changes, if any wait. Requesters take turns, so
 * none can delay the others by many changes. Each method refuses (503) if it waits too long, or if the queue is full.
 */
export class AccountChanges {
  readonly #db: Db
  readonly #queue = new FairQueue(ACCOUNT_QUEUE)
  /** For those that have the turn of their account. */
  readonly #connections: FairQueue
  /** The Idempotency-Keys whose changes run or wait in this process. */
  readonly #inFlight = new Set<string>()

  /** `connections`: those for requests. */
  constructor(db: Db, connections: number) {
    this.#db = db
    const atOnce = Math.max(1, Math.floor(connections * SHARE))
    this.#connections = new FairQueue({ timeoutMs: ACCOUNT_QUEUE.timeoutMs, all: { atOnce } })
  }

  /**
   * Commits a change if the requester has the right, the state of the account allows it, and the publisher keeps up
   * with the account. `rule`: the entry of model/account-states.ts for the request.
   */
  async commit<T>(
    accountId: string,
    requester: Requester,
    change: (tx: Tx) => Promise<T>,
    rule: StateRule = 'every other change',
  ): Promise<T> {
    const check = async (tx: Tx) => {
      const account = await lockAccount(tx, accountId, originOf(requester))
      if (account === undefined) throw notFound('this account')
      await requester.recheckRight(tx, account)
      return changeRefusal(rule, account) ?? (rule === 'every other change' ? backlogRefusal(account) : undefined)
    }
    return this.#commit(accountId, requester, isWithdrawal(rule), check, change)
  }

  /** Commits a change in any state of the account: for the compute system, whose reports are facts. */
  async commitInAnyState<T>(accountId: string, change: (tx: Tx) => Promise<T>): Promise<T> {
    const work = async (tx: Tx) => {
      if ((await lockAccount(tx, accountId)) === undefined) throw notFound('this account')
      return change(tx)
    }
    return this.#inTurn(accountId, COMPUTE, false, () => this.#transact(accountId, work))
  }

  /**
   * Commits a change of an account by a user who may have no access to it. It first waits in the user's own queue,
   * where `find` checks it and returns the id of the account. Then it enters the queue of that account.
   */
  async commitAsOutsider<T>(
    requester: Requester,
    find: (tx: Tx) => Promise<string>,
    change: (tx: Tx) => Promise<T>,
    rule: StateRule,
  ): Promise<T> {
    return this.#inTurn(requester.requesterId, requester, false, async () => {
      const accountId = await this.#transact(requester.requesterId, async (tx) => {
        await requester.recheckRight(tx)
        if (requester.key !== undefined) await new KeyedChange(requester.key).replay(tx)
        await requester.checkCondition(tx)
        return find(tx)
      })
      return this.commit(accountId, requester, change, rule)
    })
  }

  /** Commits a change of a user's profile. The changes of a user's profile have a queue too. */
  async commitProfile<T>(requester: Requester, change: (tx: Tx) => Promise<T>): Promise<T> {
    const { requesterId } = requester
    const check = async (tx: Tx) => {
      await sql`select ${setOrigin(originOf(requester))}`.execute(tx)
      await requester.recheckRight(tx)
      return undefined
    }
    return this.#commit(requesterId, requester, false, check, change)
  }

  /**
   * `check`: throws if the requester has lost the right. It returns the refusal of a new change: an earlier request
   * with the same Idempotency-Key is replayed all the same.
   */
  async #commit<T>(
    queue: string,
    requester: Requester,
    isUrgent: boolean,
    check: (tx: Tx) => Promise<Refusal | undefined>,
    change: (tx: Tx) => Promise<T>,
  ): Promise<T> {
    const keyed = requester.key && new KeyedChange(requester.key)
    const work = async (tx: Tx): Promise<() => T> => {
      await keyed?.lock(tx)
      const refusal = await check(tx)
      await keyed?.replay(tx)
      await requester.checkCondition(tx)
      if (refusal !== undefined) throw refusal
      if (keyed !== undefined) return keyed.record(tx, change)
      const result = await change(tx)
      return () => result
    }
    if (keyed !== undefined && this.#inFlight.has(keyed.name)) throw inFlightRefusal()
    if (keyed !== undefined) this.#inFlight.add(keyed.name)
    try {
      return (await this.#inTurn(queue, requester, isUrgent, () => this.#transact(queue, work)))()
    } finally {
      if (keyed !== undefined) this.#inFlight.delete(keyed.name)
    }
  }

  /** Runs work at the turn of a requester in a queue. */
  async #inTurn<T>(
    key: string,
    { requesterId, bodyBytes }: Pick<Requester, 'requesterId' | 'bodyBytes'>,
    isUrgent: boolean,
    work: () => Promise<T>,
  ): Promise<T> {
    const task = { key, caller: requesterId, cost: CHANGE_BYTES + bodyBytes, isUrgent }
    const done = await this.#queue.run(task, async () => ({ result: await work() }))
    if (done === undefined) throw shed('changes', 'other changes of this account take too long: try again')
    return done.result
  }
  /** Runs the transaction of a change that has its turn. `key`: its queue. */
  async #transact<T>(key: string, work: (tx: Tx) => Promise<T>): Promise<T> {
    const attempt = () =>
      inTransaction(this.#db, async (tx) => {
        await sql`select set_config('lock_timeout', ${String(LOCK_WAIT_MS)}, true), ${PLAN_BY_INDEX}`.execute(tx)
        return { result: await work(tx) }
      })
    for (let tries = 1; ; tries++) {
      try {
        const done = await this.#connections.run({ key }, attempt)
        if (done === undefined) throw shed('changes', 'imds-api has too many changes at present: try again')
        return done.result
      } catch (error) {
        if (tries === LOCK_TRIES || codeOf(error) !== LOCK_NOT_AVAILABLE) throw error
        await sleep(LOCK_PAUSE_MS)
      }
    }
  }
}
