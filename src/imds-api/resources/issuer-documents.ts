/**
 * The public documents of the issuers of accounts (OpenID Connect Discovery 1.0, 4), below /oidc: for verifiers of identity
 * tokens, which do not sign in.
 */
import { createPublicKey } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import type { Lookups } from '../auth/lookups.ts'
import { requireIssuer } from '../changes/identities.ts'
import type { Db } from '../database/transaction.ts'
import { sendDocument } from '../http/public-document.ts'
import type { ApiServer } from '../http/server.ts'
import { JWKS_MAX_AGE_SECONDS } from '../model/identity-key.ts'
import { issuerDocuments, ISSUER_PATHS } from '../../identity/issuer-documents.ts'
import { Algorithm } from './identities.ts'
import { RESOURCES } from './kit/table.ts'

const DOCUMENTS = {
  configuration: Type.Object(
    {
      issuer: Type.String({ format: 'uri' }),
      jwks_uri: Type.String({ format: 'uri' }),
      response_types_supported: Type.Array(Type.String()),
      subject_types_supported: Type.Array(Type.String()),
      id_token_signing_alg_values_supported: Type.Array(Algorithm),
    },
    { title: 'IssuerConfiguration' },
  ),
  keys: Type.Object(
    {
      keys: Type.Array(
        Type.Object(
          { kid: Type.String(), alg: Algorithm, use: Type.Literal('sig'), kty: Type.String() },
          { title: 'JsonWebKey', additionalProperties: true },
        ),
      ),
    },
    { title: 'JsonWebKeySet' },
  ),
}

export function addIssuerDocuments(server: ApiServer, db: Db, lookups: Lookups): void {
  const send = async (
    request: FastifyRequest,
    reply: FastifyReply,
    accountId: string,
    document: 'keys' | 'configuration',
  ) => {
    const { issuer, keys } = await lookups.run(request.address, () => requireIssuer(db, accountId))
    const now = Date.now()
    const present = keys.filter(({ retires_at }) => retires_at === null || retires_at.getTime() > now)
    const documents = await issuerDocuments(
      issuer,
      present.map(({ public_key }) => createPublicKey(public_key)),
    )
    void reply.header('Cache-Control', `public, max-age=${JWKS_MAX_AGE_SECONDS}`)
    return sendDocument(request, reply, JSON.stringify(documents[document])) // a serializer would drop members of keys
  }
  const params = Type.Object({
    account: Type.String({ description: 'The id of an account.', examples: ['acc-demo1'] }),
  })
  for (const [document, operationId] of [
    ['configuration', 'getIssuerConfiguration'],
    ['keys', 'getIssuerKeys'],
  ] as const) {
    server.get(
      `/oidc/:account/${ISSUER_PATHS[document]}`,
      {
        schema: {
          operationId,
          summary: `Get the ${document} of an issuer, as OpenID Connect says`,
          description: 'For services that verify identity tokens. It needs no access token.',
          tags: RESOURCES.account.tags,
          security: [],
          'x-headers': ['ETag'],
          params,
          response: { 200: DOCUMENTS[document] },
        },
      },
      async (request, reply) => send(request, reply, request.params.account, document),
    )
  }
}
