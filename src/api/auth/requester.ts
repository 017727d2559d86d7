/**
 * The requesters of changes: who asks, and which rights are checked again when the change has its turn
 * (changes/account-changes.ts).
 */
import type { FastifyRequest } from 'fastify'
import type { Selectable } from 'kysely'
import type { KeyOfClient } from '../changes/keyed-change.ts'
import type { AccountRequester, ProfileRequester } from '../changes/account-changes.ts'
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
  return requesterOf(request, accountId, async (tx, account) => {
    await request.recheckToken(tx)
    await recheckAccess(tx, request, account)
  })
}

/**
 * The sender of a request as the requester of a change for which the account gives no right, such as accepting an
 * invitation. Its token is checked.
 */
export function outsiderOf(request: Sender, accountId: string): AccountRequester {
  return requesterOf(request, accountId, (tx) => request.recheckToken(tx))
}

function requesterOf(request: Sender, accountId: string, stillMay: AccountRequester['stillMay']): AccountRequester {
  const { identity } = request
  return {
    accountId,
    requesterId: identity.kind === 'user' ? identity.userId : identity.clientId,
    bodyBytes: () => request.bodyBytes,
    keyed: () => keyOf(request),
    stillMay,
    checkCondition: async (tx) => request.checkCondition?.(tx),
  }
}

/** The sender of a request as the requester of a change of a profile. */
export function profileOwnerOf(request: Sender): ProfileRequester {
  return {
    bodyBytes: () => request.bodyBytes,
    keyed: () => keyOf(request),
    stillMay: (tx) => request.recheckToken(tx),
    checkCondition: async (tx) => request.checkCondition?.(tx),
  }
}

function keyOf({ identity, keyed }: Sender): KeyOfClient | undefined {
  const client = identity.kind === 'user' ? `${identity.userId} ${identity.clientId}` : identity.clientId
  return keyed && { ...keyed, client }
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
