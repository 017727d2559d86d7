/** The grant client_credentials: an API client acts for its account. */
import { grantScopes } from '../../model/scopes.ts'
import { WRONG_SCOPE, type Grant, type GrantParts } from './grant.ts'

export function buildClientCredentials({ db, tokens, seconds }: GrantParts): Grant {
  return async ({ id, accountId, scopes: allowed }, { body }) => {
    const scopes = grantScopes(body.scope, allowed)
    if (scopes === undefined) throw WRONG_SCOPE
    const accessToken = await tokens.issue(db, { clientId: id, accountId }, scopes, seconds)
    return { accessToken, refreshToken: undefined, scopes, seconds }
  }
}
