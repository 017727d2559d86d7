/**
 * Who sends a request, for which accounts, and the right to a change, which is checked again at the turn of the change
 * (changes/account-changes.ts).
 */
import type { FastifyRequest } from 'fastify'
import type { Requester } from '../changes/account-changes.ts'
import type { LockedAccount } from '../changes/limits.ts'
import type { Tx } from '../database/transaction.ts'
import { notFound } from '../model/refusal.ts'
import type { TokenHolder } from './tokens.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Set by the check of the access token (bearer.ts), before a route of /1.0 runs. */
    caller: Caller
    /** Set by the choice of the account (account-choice.ts). */
    accounts: Accounts
  }
}

/** Who sends a request, by its access token. */
export interface Caller {
  /** Of the user, or of the API client. */
  readonly id: string
  readonly holder: TokenHolder
  /** Checks the access token again. */
  readonly check: () => Promise<void>
  /** Locks the access token, and checks it again: until the commit it cannot be revoked. */
  readonly lock: (tx: Tx) => Promise<void>
}

/** The accounts that a request may read: the named one, or all of the caller. */
export interface Accounts {
  readonly ids: readonly string[]
  /** The one for which the request acts. Undefined: its route does not need one. */
  readonly one: string | undefined
  /** Checks the access token and the access again, for a response that takes long. */
  readonly check: () => Promise<void>
}

/** The account of a request to a route that needs one. */
export function accountOf({ accounts: { one } }: Pick<FastifyRequest, 'accounts'>): string {
  if (one === undefined) throw new Error('the route of this request does not need one account')
  return one
}

type Condition = Requester['checkCondition']

/** The sender of a request as the requester of a change of an account to which it has access. */
export function memberRequester(request: FastifyRequest, accountId: string, condition: Condition): Requester {
  const recheckRight: Requester['recheckRight'] = async (tx, account) => {
    await request.caller.lock(tx)
    await lockAccess(tx, request.caller, account!)
  }
  return requesterOf(request, accountId, recheckRight, condition)
}

/**
 * The sender of a request as the requester of a change that needs only an access token: of their profile, or the answer
 * to an invitation.
 */
export function tokenRequester(request: FastifyRequest, condition: Condition): Requester {
  const { holder, lock } = request.caller
  return requesterOf(request, holder.kind === 'user' ? holder.userId : holder.accountId, lock, condition)
}

/** `owner`: of its Idempotency-Key. */
function requesterOf(
  { caller: { id, holder }, id: requestId, heldBody, keyed }: FastifyRequest,
  owner: string,
  recheckRight: Requester['recheckRight'],
  checkCondition: Condition,
): Requester {
  const client = holder.kind === 'user' ? `${holder.userId} ${holder.clientId}` : holder.clientId
  return {
    requesterId: id,
    requestId,
    bodyBytes: heldBody?.bytes ?? 0,
    key: keyed && { ...keyed, owner, client },
    recheckRight,
    checkCondition,
  }
}

/**
 * Refuses a user who has lost the access to the account. Locks the collaboration that gives it. An API client always has
 * access to its account.
 */
async function lockAccess(tx: Tx, { holder }: Caller, account: LockedAccount): Promise<void> {
  if (holder.kind === 'client' || account.owner_id === holder.userId) return
  await tx
    .selectFrom('collaborations')
    .select('id')
    .where('account_id', '=', account.id)
    .where('user_id', '=', holder.userId)
    .where('status', '=', 'accepted')
    .forShare()
    .executeTakeFirstOrThrow(() => notFound('this account'))
}
