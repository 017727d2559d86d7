/** The grant client_credentials: an API client acts for its account. */
import { grantScopes } from '../../model/scopes.ts'
import { WRONG_SCOPE, type GrantType } from './grant.ts'

export const CLIENT_CREDENTIALS: GrantType = {
  name: 'client_credentials',
  title: 'ClientCredentialsGrant',
  fields: {},
  build:
    ({ db, tokens, seconds, authenticate, inTurn }) =>
    async (request) => {
      const client = await authenticate(request, 'api-client')
      return inTurn(client, async () => {
        const { id, accountId, scopes: allowed } = client
        const scopes = grantScopes(request.body['scope'], allowed)
        if (scopes === undefined) throw WRONG_SCOPE
        const accessToken = await tokens.issue(db, { clientId: id, accountId }, scopes, seconds)
        return { accessToken, refreshToken: undefined, scopes, seconds }
      })
    },
}
