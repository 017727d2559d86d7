/**
 * The account of a request. An API client acts for its own account. A user names an account by the query parameter
 * `account_id`: one that the user owns, or can access by an accepted collaboration. Other accounts do not exist for the
 * caller.
 */
import type { FastifyRequest } from 'fastify'
import type { AccountRequester } from '../changes/account-changes.ts'
import { accountsOf } from '../changes/members.ts'
import { SAFE_METHODS, type DescribeActor } from '../http/audit.ts'
import { enterShareOf } from '../http/read-share.ts'
import { fieldFault, notFound, refuse } from '../model/refusal.ts'
import { memberRequester } from './requester.ts'
import type { TokenHolder } from './tokens.ts'
import type { Db } from '../database/transaction.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /**
     * The accounts that a request may read: the named one, or all of the caller. Set for all routes of /1.0 but
     * /1.0/user/collaborations.
     */
    accountIds: readonly string[]
    /** Checks the access token and the access to the accounts again, for a response that takes long. */
    checkAccess: () => Promise<void>
    /** Who sends a request, with the account that it acts for. Undefined: its route does not need one account. */
    caller: AccountRequester | undefined
  }
}

/**
 * Builds a hook that sets `accountIds`, after the check of the access token. With `isRequired`, it also sets `caller`,
 * and refuses (400) a user who names no account.
 */
export function buildAccountChoice(db: Db, isRequired: boolean): (request: FastifyRequest) => Promise<void> {
  return async (request) => {
    const { tokenHolder } = request
    const { account_id: named } = request.query as Readonly<Record<string, unknown>>
    const chosen = await chooseAccounts(db, tokenHolder, named, isRequired)
    request.accountIds = chosen
    const { id } = request.params as { readonly id?: string }
    const read = chosen.length === 1 ? chosen[0] : chosen.find((one) => one === id)
    if (read !== undefined) request.bodyOwner = read // what a user sends for an account counts for the account
    if (read !== undefined && SAFE_METHODS.includes(request.method)) await enterShareOf(request, read)
    request.checkAccess = async () => {
      await request.checkToken()
      const present = await chooseAccounts(db, tokenHolder, named, isRequired)
      if (!chosen.every((one) => present.includes(one))) throw notFound('an account of this response')
    }
    if (isRequired) request.caller = memberRequester(request, chosen[0]!)
  }
}

/** The caller of a request to a route that needs one account. */
export function callerOf({ caller }: Pick<FastifyRequest, 'caller'>): AccountRequester {
  if (caller === undefined) throw new Error('the route of this request does not need one account')
  return caller
}

/** An account of others gets the same refusal as an account that does not exist. */
async function chooseAccounts(
  db: Db,
  tokenHolder: TokenHolder,
  named: unknown,
  isRequired: boolean,
): Promise<readonly string[]> {
  if (named !== undefined && (typeof named !== 'string' || named === ''))
    throw refuse(
      'bad_request',
      fieldFault('account_id', 'malformed', 'account_id must be the id of one account, given once'),
    )
  if (tokenHolder.kind === 'client') {
    if (named !== undefined && named !== tokenHolder.accountId) throw notFound('this account')
    return [tokenHolder.accountId]
  }
  if (named === undefined && isRequired)
    throw refuse(
      'bad_request',
      fieldFault(
        'account_id',
        'missing',
        'account_id is missing: add ?account_id= with the account that the request is for',
      ),
    )
  const ids = await accountsOf(db, tokenHolder.userId)
  if (named === undefined) return ids
  const chosen = ids.find((id) => id === named)
  if (chosen === undefined) throw notFound('this account')
  return [chosen]
}

/** Describes the actor of a route with an access token for audit lines. Routes of the user's side have no account. */
export const describeClient: DescribeActor = ({ tokenHolder, caller }) => ({
  client: tokenHolder.clientId,
  server: tokenHolder.kind === 'client' ? tokenHolder.serverId : undefined,
  user: tokenHolder.kind === 'user' ? tokenHolder.userId : undefined,
  account: caller?.accountId,
})
