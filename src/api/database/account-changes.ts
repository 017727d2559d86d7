/** Runs the changes of accounts' resources. The changes of one account run one after another. */
import type AsyncLock from 'async-lock'
import type { Kysely, Selectable } from 'kysely'
import { refuseChange, type ChangeRequest } from '../model/account-states.ts'
import { refuse, type Refusal } from '../refusal.ts'
import { lockAccount } from './limits.ts'
import type { Tables } from './tables.ts'
import { inTransaction, type Change } from './transaction.ts'

/** The queue of each account: how long a change may wait for its turn, in milliseconds, and how many may wait. */
export const ACCOUNT_QUEUE = { timeout: 10_000, maxPending: 1_000 } as const

/**
 * The changes of all accounts. A change gets a connection to the database only at its turn, so an account uses at most one connection of each process for
 * changes. It then locks the account's row against the changes of other processes. So changes of one account cannot deadlock, and what one of them has checked
 * (the state of the account, that a destination exists, that a limit has room) stays true until it commits.
 */
export class AccountChanges {
  readonly #database: Kysely<Tables>
  readonly #queues: AsyncLock

  /** `queues`: made with ACCOUNT_QUEUE. */
  constructor(database: Kysely<Tables>, queues: AsyncLock) {
    this.#database = database
    this.#queues = queues
  }

  /**
   * Commits a change, unless the state of the account forbids it. `request`: the request, if model/account-states.ts lists it. Refused (503) if the
   * changes before it take too long.
   */
  async commit<T>(accountId: string, change: (transaction: Change) => Promise<T | Refusal>, request: ChangeRequest = 'every other change'): Promise<T | Refusal> {
    return this.#inTurn(accountId, async (transaction, account) => refuseChange(request, account) ?? change(transaction))
  }

  /** Commits a change in any state of the account: for the compute system. Refused (503) as `commit` does. */
  async commitAlways<T>(accountId: string, change: (transaction: Change) => Promise<T | Refusal>): Promise<T | Refusal> {
    return this.#inTurn(accountId, change)
  }

  async #inTurn<T>(accountId: string, change: (transaction: Change, account: Selectable<Tables['accounts']>) => Promise<T | Refusal>): Promise<T | Refusal> {
    const commit = () => inTransaction(this.#database, async (transaction) => change(transaction, await lockAccount(transaction, accountId)))
    // The queue itself rejects only a change whose turn did not come: what the change throws is in `outcome`.
    const [outcome] = await this.#queues.acquire(accountId, () => Promise.allSettled([commit()])).catch((): [undefined] => [undefined])
    if (outcome === undefined) return refuse('service_unavailable', 'other changes of this account take too long: try again')
    if (outcome.status === 'rejected') throw outcome.reason
    return outcome.value
  }
}
