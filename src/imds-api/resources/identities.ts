/**
 * The issuer of an account: the issuer of the identity tokens of its servers (contract H4). No response has a private
 * key. issuer-documents.ts has what verifiers read.
 */
import type { FastifyRequest } from 'fastify'
import Type, { type Static } from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import {
  createIssuer,
  deleteIssuer,
  findIssuer,
  requireIssuer,
  rotationRefusal,
  rotateKeys,
  updateIssuer,
  type AccountIssuer,
  type IssuerFields,
} from '../changes/identities.ts'
import type { Db } from '../database/transaction.ts'
import type { ApiServer } from '../http/server.ts'
import { IDENTITY_ALGORITHMS, KeyMaker } from '../model/identity-key.ts'
import { fieldFault, refuse } from '../model/refusal.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { isIssuer } from '../../identity/issuer.ts'
import { AUDIENCE, AUDIENCE_RULE } from '../../metadata/identifiers.ts'
import { MAX_AUDIENCES, IDENTITY_LIFETIME } from '../../metadata/schema.ts'
import type { ResourceParts } from './parts.ts'
import { nullable, oneOf, Time } from './kit/schemas.ts'
import { RESOURCES } from './kit/table.ts'

export const Algorithm = oneOf(IDENTITY_ALGORITHMS)
const STATUSES = ['active', 'paused'] as const
const Key = Type.Object({
  kid: Type.String(),
  algorithm: Algorithm,
  signs_from: Type.String({ format: 'date-time', description: 'The latest key that has begun signs.' }),
  retires_at: nullable(Time, { description: 'When it leaves jwks.json; null: it is the latest key.' }),
})
const Identity = Type.Object(
  {
    issuer: Type.String({ format: 'uri' }),
    status: oneOf(STATUSES),
    algorithm: Algorithm,
    audiences: Type.Array(Type.String()),
    lifetime_seconds: Type.Integer(),
    created_at: Time,
    keys: Type.Array(Key),
  },
  { title: 'AccountIdentity' },
)
const Change = Type.Object(
  {
    audiences: Type.Optional(
      Type.Array(Type.String({ pattern: AUDIENCE, hint: AUDIENCE_RULE }), {
        minItems: 1,
        maxItems: MAX_AUDIENCES,
        description: 'The audiences for which servers get tokens. Required for a new identity.',
      }),
    ),
    lifetime_seconds: Type.Optional(
      Type.Integer({
        minimum: IDENTITY_LIFETIME.least,
        maximum: IDENTITY_LIFETIME.most,
        description: 'How long a token is valid. Default for a new identity: 600.',
      }),
    ),
    algorithm: Type.Optional(
      Type.Enum([...IDENTITY_ALGORITHMS], {
        description: 'How tokens are signed; a change is for the next key. Default for a new identity: ES256.',
      }),
    ),
    status: Type.Optional(Type.Enum([...STATUSES], { description: 'paused: servers get no tokens.' })),
  },
  { title: 'IdentityChange', examples: [{ audiences: ['https://vault.example.com'], lifetime_seconds: 600 }] },
)

const { tags } = RESOURCES.account
const PATH = '/account/identity'
const DEFAULTS = { algorithm: 'ES256', lifetime_seconds: 600, status: 'active' } as const

/** Adds the routes of `/account/identity`. */
export function addIdentityRoutes(server: ApiServer, { db, accounts, site, encryptsRecords }: ResourceParts): void {
  const maker = new KeyMaker()
  const response = { 200: Identity }
  const load = async (database: Db, request: FastifyRequest) => {
    const { accountId: id } = callerOf(request) // all changes of an issuer wait for the lock of the account
    return { ...formatIssuer(await requireIssuer(database, id)), id }
  }
  server.get(
    PATH,
    {
      schema: {
        operationId: 'getIdentity',
        summary: 'Get the issuer of identity tokens',
        description:
          'The issuer of the tokens by which servers of the account prove what they are. 404: the account has none.',
        tags,
        response,
      },
      config: { member: { table: 'accounts', load } },
    },
    (request) => load(db, request),
  )
  server.put(
    PATH,
    {
      schema: {
        operationId: 'putIdentity',
        summary: 'Make or change the issuer of identity tokens',
        description: 'A new issuer needs audiences. 422 in a region whose records are not encrypted.',
        tags,
        body: Change,
        response,
      },
    },
    async (request) => {
      const { body } = request
      const caller = callerOf(request)
      const { accountId } = caller
      const issuer = issuerUrl(site.baseUrl, accountId)
      const refusal = newIssuerRefusal(encryptsRecords, issuer, body)
      const isNew = refusal === undefined && (await findIssuer(db, accountId)) === undefined
      // made before the change, which has a connection of the database
      const key = isNew ? await maker.make(body.algorithm ?? DEFAULTS.algorithm) : undefined
      return await accounts.commit(caller, async (tx) => {
        const current = await findIssuer(tx, accountId)
        if (current !== undefined) await updateIssuer(tx, accountId, changed(current, body))
        else if (refusal !== undefined) throw refusal
        else if (key === undefined) throw refuse('resource_conflict', 'the identity was deleted meanwhile: try again')
        else await createIssuer(tx, accountId, issuer, { ...DEFAULTS, audiences: [], ...fieldsOf(body) }, key)
        return formatIssuer(await requireIssuer(tx, accountId))
      })
    },
  )
  server.post(
    `${PATH}/rotate`,
    {
      schema: {
        operationId: 'rotateIdentityKey',
        summary: 'Make a new key for identity tokens',
        description: 'It signs after 10 minutes. The key before it stays in jwks.json for 24 hours more.',
        tags,
        response,
      },
    },
    async (request) => {
      const caller = callerOf(request)
      const { accountId } = caller
      const before = await findIssuer(db, accountId)
      // checked again in its turn, with the state of the account
      const refused = before === undefined || rotationRefusal(before, Date.now()) !== undefined
      const key = refused ? undefined : await maker.make(before.algorithm)
      return await accounts.commit(caller, async (tx) => {
        await rotateKeys(tx, accountId, key)
        return formatIssuer(await requireIssuer(tx, accountId))
      })
    },
  )
  server.delete(
    PATH,
    {
      schema: {
        operationId: 'deleteIdentity',
        summary: 'Destroy the issuer of identity tokens, with its keys',
        description: 'Servers get no more tokens, and its public documents are gone.',
        tags,
        response,
      },
    },
    async (request) => {
      const caller = callerOf(request)
      const { accountId } = caller
      return await accounts.commit(
        caller,
        async (tx) => {
          const last = await requireIssuer(tx, accountId)
          await deleteIssuer(tx, accountId)
          return formatIssuer(last)
        },
        'DELETE /account/identity',
      )
    },
  )
}

function issuerUrl(baseUrl: string, accountId: string): string {
  return `${baseUrl}/oidc/${accountId}`
}

/** Why there can be no new issuer in this region, or with this body; undefined: there can. */
function newIssuerRefusal(encryptsRecords: boolean, issuer: string, { audiences }: Static<typeof Change>) {
  if (!encryptsRecords)
    return refuse(
      'unprocessable_entity',
      'the records of this region are not encrypted, so others could read the private key: ' +
        'the operator has to set IMDS_RECORD_KEYS_FILE (docs/encryption.md)',
    )
  if (!isIssuer(issuer))
    return refuse(
      'unprocessable_entity',
      'verifiers need an https URL of this API: the operator has to set IMDS_API_BASE_URL to one',
    )
  return audiences === undefined
    ? refuse('unprocessable_entity', fieldFault('audiences', 'missing', 'audiences is missing'))
    : undefined
}

/** The fields that a request sets. Its other parameters may have the names of columns, such as `issuer`. */
function fieldsOf({ audiences, lifetime_seconds, algorithm, status }: Static<typeof Change>): Partial<IssuerFields> {
  return {
    ...(audiences !== undefined && { audiences: [...new Set(audiences)] }),
    ...(lifetime_seconds !== undefined && { lifetime_seconds }),
    ...(algorithm !== undefined && { algorithm }),
    ...(status !== undefined && { status }),
  }
}

/** The fields of a change that differ: if none does, nothing is published. */
function changed(current: AccountIssuer, body: Static<typeof Change>): Partial<IssuerFields> {
  const fields = Object.entries(fieldsOf(body))
  return Object.fromEntries(
    fields.filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(current[name as keyof IssuerFields])),
  )
}

function formatIssuer(row: AccountIssuer): Static<typeof Identity> {
  const { issuer, status, algorithm, audiences, lifetime_seconds, created_at, keys } = row
  return {
    issuer,
    status,
    algorithm,
    audiences,
    lifetime_seconds,
    created_at: formatTime(created_at),
    keys: keys.map(({ kid, algorithm: of, signs_from, retires_at }) => ({
      kid,
      algorithm: of,
      signs_from: formatTime(signs_from),
      retires_at: formatOptionalTime(retires_at),
    })),
  }
}
