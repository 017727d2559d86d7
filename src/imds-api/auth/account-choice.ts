/**
 * The account of a request. An API client acts for its own account. A user names an account by the query parameter
 * `account_id`: one that the user owns, or can access by an accepted collaboration. Other accounts do not exist for the
 * caller.
 */
import type { FastifyRequest } from 'fastify'
import { accountsOf } from '../changes/members.ts'
import { SAFE_METHODS, type DescribeActor } from '../http/audit.ts'
import { fieldFault, notFound, refuse } from '../model/refusal.ts'
import type { TokenHolder } from './tokens.ts'
import type { Db } from '../database/transaction.ts'

/** For routes that need no account. */
export async function chooseNoAccount(request: FastifyRequest): Promise<void> {
  request.accounts = { ids: [], one: undefined, check: request.caller.check }
  return Promise.resolve()
}

/**
 * Builds a hook that chooses the accounts, after the check of the access token. With `isRequired` it is one, and a user
 * who names none is refused (400).
 */
export function buildAccountChoice(db: Db, isRequired: boolean): (request: FastifyRequest) => Promise<void> {
  return async (request) => {
    const { holder, check } = request.caller
    const { account_id: named } = request.query as Readonly<Record<string, unknown>>
    const ids = await chooseAccounts(db, holder, named, isRequired)
    request.accounts = {
      ids,
      one: isRequired ? ids[0] : undefined,
      check: async () => {
        await check()
        const present = await chooseAccounts(db, holder, named, isRequired)
        if (!ids.every((id) => present.includes(id))) throw notFound('an account of this response')
      },
    }
    const { id: ofPath } = request.params as { readonly id?: string }
    // what a user sends for an account counts for the account
    request.owner = (ids.length === 1 ? ids[0] : ids.find((id) => id === ofPath)) ?? request.owner
    if (SAFE_METHODS.includes(request.method)) await request.share.enter()
  }
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
export const describeClient: DescribeActor = ({ caller: { holder }, accounts }) => ({
  client: holder.clientId,
  server: holder.kind === 'client' ? holder.serverId : undefined,
  user: holder.kind === 'user' ? holder.userId : undefined,
  account: accounts.one,
})
