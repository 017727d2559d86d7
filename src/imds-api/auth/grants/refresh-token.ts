/** The grant refresh_token: an application acts for a user who has signed in before. */
import Type from 'typebox'
import { inTransaction } from '../../database/transaction.ts'
import { narrowScopes } from '../../model/scopes.ts'
import { invalid, issueForFamily, type GrantType } from './grant.ts'

const WRONG_REFRESH = invalid(
  'invalid_grant',
  'the refresh token is not valid for this client, has expired, was used before, or was revoked',
)

export const REFRESH_TOKEN: GrantType = {
  name: 'refresh_token',
  title: 'RefreshTokenGrant',
  fields: { refresh_token: Type.String() },
  build: (parts) => async (request) => {
    const client = await parts.authenticate(request, 'application')
    return parts.inTurn(client, async () => {
      const { refresh_token: token, scope } = request.body
      const { db, families } = parts
      if (token === undefined) throw invalid('invalid_request', 'refresh_token is required')
      const granted = await inTransaction(db, async (tx) => {
        const used = await families.find(tx, client.id, token)
        if (used === undefined) return undefined // committed, since a family may have been revoked
        const scopes = narrowScopes(scope, used.scopes)
        if (scopes !== undefined)
          return issueForFamily(tx, parts, used.familyId, await families.rotate(tx, used), scopes)
        throw invalid(
          'invalid_scope',
          `scope must be within the scopes of the refresh token: ${used.scopes.join(', ')}`,
        )
      })
      if (granted === undefined) throw WRONG_REFRESH
      return granted
    })
  },
}
