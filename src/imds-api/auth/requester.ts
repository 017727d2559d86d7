/**
 * The requesters of changes, with the rights that are checked again at the turn of the change
 * (changes/account-changes.ts).
 */
import type { FastifyRequest } from 'fastify'
import type { Selectable } from 'kysely'
import type { KeyOfClient } from '../changes/keyed-change.ts'
import type { AccountRequester, Requester, TokenRequester } from '../changes/account-changes.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import { notFound } from '../model/refusal.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Refuses a change whose condition does not hold (`If-Match`), in its transaction. Undefined: it has none. */
    checkCondition: ((tx: Tx) => Promise<void>) | undefined
  }
}

type Sender = Pick<FastifyRequest, 'tokenHolder' | 'id' | 'lockToken' | 'bodyBytes' | 'checkCondition' | 'keyed'>

/** The sender of a request as the requester of a change of an account to which it has access. */
export function memberRequester(request: Sender, accountId: string): AccountRequester {
  return {
    ...requesterOf(request, accountId),
    accountId,
    recheckRight: async (tx, account) => {
      await request.lockToken(tx)
      await lockAccess(tx, request, account)
    },
  }
}

/**
 * The sender of a request as the requester of a change that needs only an access token: of their profile, or the answer
 * to an invitation.
 */
export function tokenRequester(request: Sender): TokenRequester {
  const { tokenHolder } = request
  return {
    ...requesterOf(request, tokenHolder.kind === 'user' ? tokenHolder.userId : tokenHolder.accountId),
    recheckRight: (tx) => request.lockToken(tx),
  }
}

/** `keyOwner`: of its Idempotency-Key. */
function requesterOf(request: Sender, keyOwner: string): Omit<Requester, 'recheckRight'> {
  const { tokenHolder } = request
  return {
    requesterId: tokenHolder.kind === 'user' ? tokenHolder.userId : tokenHolder.clientId,
    requestId: request.id,
    bodyBytes: () => request.bodyBytes,
    keyed: () => keyOf(request, keyOwner),
    checkCondition: async (tx) => request.checkCondition?.(tx),
  }
}

function keyOf({ tokenHolder, keyed }: Sender, owner: string): KeyOfClient | undefined {
  const client = tokenHolder.kind === 'user' ? `${tokenHolder.userId} ${tokenHolder.clientId}` : tokenHolder.clientId
  return keyed && { ...keyed, owner, client }
}

/**
 * Refuses a user who has lost the access to the account. Locks the collaboration that gives it. An API client always has
 * access to its account.
 */
async function lockAccess(tx: Tx, { tokenHolder }: Sender, account: Selectable<Tables['accounts']>): Promise<void> {
  if (tokenHolder.kind === 'client' || account.owner_id === tokenHolder.userId) return
  await tx
    .selectFrom('collaborations')
    .select('id')
    .where('account_id', '=', account.id)
    .where('user_id', '=', tokenHolder.userId)
    .where('status', '=', 'accepted')
    .forShare()
    .executeTakeFirstOrThrow(() => notFound('this account'))
}
