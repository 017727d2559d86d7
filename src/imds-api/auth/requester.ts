/**
 * The requesters of changes: who asks, and which rights are checked again when the change has its turn
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

type Sender = Pick<FastifyRequest, 'identity' | 'recheckToken' | 'bodyBytes' | 'checkCondition' | 'keyed'>

/** The sender of a request as the requester of a change of an account to which it has access. */
export function memberOf(request: Sender, accountId: string): AccountRequester {
  return {
    ...requesterOf(request, accountId),
    accountId,
    stillMay: async (tx, account) => {
      await request.recheckToken(tx)
      await recheckAccess(tx, request, account)
    },
  }
}

/**
 * The sender of a request as the requester of a change for which no account gives the right: of their profile, or the
 * answer to an invitation. Its token is checked.
 */
export function tokenHolderOf(request: Sender): TokenRequester {
  const { identity } = request
  return {
    ...requesterOf(request, identity.kind === 'user' ? identity.userId : identity.accountId),
    stillMay: (tx) => request.recheckToken(tx),
  }
}

/** `keyOwner`: of its Idempotency-Key. */
function requesterOf(request: Sender, keyOwner: string): Omit<Requester, 'stillMay'> {
  const { identity } = request
  return {
    requesterId: identity.kind === 'user' ? identity.userId : identity.clientId,
    bodyBytes: () => request.bodyBytes,
    keyed: () => keyOf(request, keyOwner),
    checkCondition: async (tx) => request.checkCondition?.(tx),
  }
}

function keyOf({ identity, keyed }: Sender, owner: string): KeyOfClient | undefined {
  const client = identity.kind === 'user' ? `${identity.userId} ${identity.clientId}` : identity.clientId
  return keyed && { ...keyed, owner, client }
}

/**
 * Refuses a user who has no access to the account any more. Locks the collaboration that gives it. The token of an API
 * client is for its account.
 */
async function recheckAccess(tx: Tx, { identity }: Sender, account: Selectable<Tables['accounts']>): Promise<void> {
  if (identity.kind === 'client' || account.owner_id === identity.userId) return
  const found = await tx
    .selectFrom('collaborations')
    .select('id')
    .where('account_id', '=', account.id)
    .where('user_id', '=', identity.userId)
    .where('status', '=', 'accepted')
    .forShare()
    .executeTakeFirst()
  if (found === undefined) throw notFound('this account')
}
