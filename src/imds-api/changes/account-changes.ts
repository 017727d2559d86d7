/** Runs the changes of accounts' resources. The changes of one account run one after another. */
import { sql, type Kysely, type Selectable } from 'kysely'
import { FairQueue, type FairQueueLimits, type Leave } from '../../limits/fair-queue.ts'
import { isWithdrawal, changeRefusal, type ChangeRequest } from '../model/account-states.ts'
import { notFound, shed, type Refusal } from '../model/refusal.ts'
import { setActor } from './events.ts'
import { inFlightRefusal, KeyedChange, type KeyOfClient } from './keyed-change.ts'
import { lockAccount } from './limits.ts'
import type { Tables } from '../database/tables.ts'
import { inTransaction, type Tx } from '../database/transaction.ts'

/**
 * Limits of an account's queue: wait in ms, length in bytes. Fewer bytes than its bodies may have (body-budget.ts), so
 * that waiting changes leave room for those that arrive.
 */
export const ACCOUNT_QUEUE = { atOnce: 1, waitingMax: 8 * 2 ** 20, timeoutMs: 10_000 } satisfies FairQueueLimits
/** The bytes of a change that waits, besides those of its body. So 1,024 changes can wait. */
export const CHANGE_BYTES = 8_192

/** Who asks for a change. */
export interface Requester {
  /** The id of the user or API client. The requesters of an account take turns. */
  readonly requesterId: string
  /** The length of its body, once that has arrived. */
  readonly bodyBytes: () => number
  /** Its Idempotency-Key, if it has one. */
  readonly keyed: () => KeyOfClient | undefined
  /**
   * Refuses the change if the requester may not make it any more: it may have waited. Runs in the transaction of the
   * change, in which `account` is locked. Until the commit nobody can take away the right.
   */
  readonly recheckRight: (tx: Tx, account: Selectable<Tables['accounts']>) => Promise<void>
  /** Refuses a change whose condition does not hold (`If-Match`). A repeat of a change that was made is not checked. */
  readonly checkCondition: (tx: Tx) => Promise<void>
}

/** A requester and the account that the change is for. */
export interface AccountRequester extends Requester {
  readonly accountId: string
}

/** A requester whose right is the access token alone: a user with an invitation, or with their own profile. */
export interface TokenRequester extends Requester {
  readonly recheckRight: (tx: Tx) => Promise<void>
}

/** Hypervisors report what has happened already: nobody withdraws that. */
const COMPUTE: Requester = {
  requesterId: 'compute',
  bodyBytes: () => 0,
  keyed: () => undefined,
  recheckRight: () => Promise.resolve(),
  checkCondition: () => Promise.resolve(),
}

/**
 * The changes of all accounts. A change gets a connection to the database only at its turn, so an account uses at most
 * one connection of each process for changes. It then locks the account's row against the changes of other processes.
 * So changes of one account cannot deadlock, and what one of them has checked (the right of its requester, the state of
 * the account, that a destination exists, that a limit has room) stays true until it commits.
 *
 * What withdraws access goes first, in every second turn at least. Requesters take turns, so none can delay the others
 * by many changes. Each method is refused (503) if the changes before it take too long, or too many wait.
 */
export class AccountChanges {
  readonly #database: Kysely<Tables>
  readonly #queue: FairQueue
  /** The names of the keys whose changes run or wait in this process. */
  readonly #inFlight = new Set<string>()

  constructor(database: Kysely<Tables>, limits: FairQueueLimits) {
    this.#database = database
    this.#queue = new FairQueue(limits)
  }

  /** True while a change runs or waits. */
  get isBusy(): boolean {
    return this.#queue.isBusy
  }

  /**
   * Commits a change, unless the requester or the state of the account may not make it. `request`: the request, if
   * model/account-states.ts lists it.
   */
  async commit<T>(
    requester: AccountRequester,
    change: (tx: Tx) => Promise<T>,
    request: ChangeRequest = 'every other change',
  ): Promise<T> {
    const { accountId } = requester
    const check = async (tx: Tx) => {
      const account = await lockAccount(tx, accountId, requester.requesterId)
      if (account === undefined) throw notFound('this account')
      await requester.recheckRight(tx, account)
      return changeRefusal(request, account)
    }
    return this.#inTurn(accountId, requester, isWithdrawal(request), check, change)
  }

  /** Commits a change in any state of the account: for the compute system. */
  async commitInAnyState<T>(accountId: string, change: (tx: Tx) => Promise<T>): Promise<T> {
    const check = async (tx: Tx) =>
      (await lockAccount(tx, accountId)) === undefined ? notFound('this account') : undefined
    return this.#inTurn(accountId, COMPUTE, false, check, change)
  }

  /**
   * Commits a change of an account by a user who may have no access to it. It waits for its turn among the user's own
   * changes. Only if `find` allows it then, it enters the queue of the account, whose id `find` returns.
   */
  async commitAsOutsider<T>(
    requester: TokenRequester,
    find: (tx: Tx) => Promise<string>,
    change: (tx: Tx) => Promise<T>,
    request: ChangeRequest,
  ): Promise<T> {
    const leave = await this.#enter(requester.requesterId, requester, false)
    try {
      const accountId = await inTransaction(this.#database, async (tx) => {
        await requester.recheckRight(tx)
        const key = requester.keyed()
        if (key !== undefined) await new KeyedChange(key).replay(tx)
        await requester.checkCondition(tx)
        return find(tx)
      })
      return await this.commit({ ...requester, accountId }, change, request)
    } finally {
      leave()
    }
  }

  /** Commits a change of a user's profile. The changes of a user's profile have a queue too. */
  async commitProfile<T>(requester: TokenRequester, change: (tx: Tx) => Promise<T>): Promise<T> {
    const { requesterId } = requester
    const check = async (tx: Tx) => {
      await sql`select ${setActor(requesterId)}`.execute(tx)
      await requester.recheckRight(tx)
      return undefined
    }
    return this.#inTurn(requesterId, requester, false, check, change)
  }

  /**
   * `check`: throws if the requester may not make the change any more. What it returns refuses the change, but not the
   * response to an earlier request with the same Idempotency-Key.
   */
  async #inTurn<T>(
    queue: string,
    requester: Omit<Requester, 'recheckRight'>,
    isUrgent: boolean,
    check: (tx: Tx) => Promise<Refusal | undefined>,
    change: (tx: Tx) => Promise<T>,
  ): Promise<T> {
    const key = requester.keyed()
    if (key === undefined) {
      return this.#run(queue, requester, isUrgent, async (tx) => {
        const refusal = await check(tx)
        await requester.checkCondition(tx)
        if (refusal !== undefined) throw refusal
        return change(tx)
      })
    }
    const keyed = new KeyedChange(key)
    if (this.#inFlight.has(keyed.name)) throw inFlightRefusal()
    this.#inFlight.add(keyed.name)
    try {
      const end = await this.#run(queue, requester, isUrgent, async (tx) => {
        await keyed.claim(tx)
        const refusal = await check(tx)
        await keyed.replay(tx)
        await requester.checkCondition(tx)
        if (refusal !== undefined) throw refusal
        return keyed.record(tx, change)
      })
      return end()
    } finally {
      this.#inFlight.delete(keyed.name)
    }
  }

  async #enter(
    key: string,
    { requesterId, bodyBytes }: Pick<Requester, 'requesterId' | 'bodyBytes'>,
    isUrgent: boolean,
  ): Promise<Leave> {
    const leave = await this.#queue.enter({ key, caller: requesterId, cost: CHANGE_BYTES + bodyBytes(), isUrgent })
    if (typeof leave === 'function') return leave
    throw shed('changes', 'other changes of this account take too long: try again')
  }

  async #run<T>(
    key: string,
    requester: Pick<Requester, 'requesterId' | 'bodyBytes'>,
    isUrgent: boolean,
    change: (tx: Tx) => Promise<T>,
  ): Promise<T> {
    const leave = await this.#enter(key, requester, isUrgent)
    try {
      return await inTransaction(this.#database, change)
    } finally {
      leave()
    }
  }
}
