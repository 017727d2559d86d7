/**
 * The issuer of an account: the issuer of the identity tokens of its servers (contract H4). No response has a private
 * key. issuer-documents.ts has what verifiers read.
 */
import Type, { type Static } from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import type { AccountRequester } from '../changes/account-changes.ts'
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
import { IDENTITY_ALGORITHMS, KeyMaker } from '../model/identity-key.ts'
import { fieldFault, refuse } from '../model/refusal.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { isIssuer } from '../../identity/issuer.ts'
import { AUDIENCE, AUDIENCE_RULE } from '../../metadata/identifiers.ts'
import { MAX_AUDIENCES, IDENTITY_LIFETIME } from '../../metadata/schema.ts'
import type { Representation } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { nullable, enumOf, Time } from './kit/schemas.ts'

export const Algorithm = enumOf(IDENTITY_ALGORITHMS)
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
    status: enumOf(STATUSES),
    algorithm: Algorithm,
    audiences: Type.Array(Type.String()),
    lifetime_seconds: Type.Integer(),
    created_at: Time,
    keys: Type.Array(Key),
  },
  { title: 'AccountIdentity' },
)
const Change = Type.Partial(
  Type.Object({
    audiences: Type.Array(Type.String({ pattern: AUDIENCE, hint: AUDIENCE_RULE }), {
      minItems: 1,
      maxItems: MAX_AUDIENCES,
      description: 'The audiences for which servers get tokens. Required for a new identity.',
    }),
    lifetime_seconds: Type.Integer({
      minimum: IDENTITY_LIFETIME.least,
      maximum: IDENTITY_LIFETIME.most,
      description: 'How long a token is valid. Default for a new identity: 600.',
    }),
    algorithm: Type.Enum([...IDENTITY_ALGORITHMS], {
      description: 'How tokens are signed; a change is for the next key. Default for a new identity: ES256.',
    }),
    status: Type.Enum([...STATUSES], { description: 'paused: servers get no tokens.' }),
  }),
  { title: 'IdentityChange', examples: [{ audiences: ['https://vault.example.com'], lifetime_seconds: 600 }] },
)

const DEFAULTS = { algorithm: 'ES256', lifetime_seconds: 600, status: 'active' } as const

/** Adds the routes of `/account/identity`. All changes of an issuer wait for the lock of its account. */
export function addIdentityRoutes(parts: ResourceParts): void {
  const maker = new KeyMaker()
  const identity = new Members(parts, {
    form: NESTED.account,
    as: { path: 'account/identity', name: 'Identity', noun: 'the issuer of identity tokens', schema: Identity },
    load: async (db, request) => formatIssuer(await requireIssuer(db, callerOf(request).accountId)),
  })
  const { path } = identity

  identity.get(
    'The issuer of the tokens by which servers of the account prove what they are. 404: the account has none.',
  )
  identity.route(
    'PUT',
    path,
    {
      operationId: 'putIdentity',
      summary: 'Make or change the issuer of identity tokens',
      description: 'A new issuer needs audiences. 422 in a region whose records are not encrypted.',
      body: Change,
    },
    ({ request, body }) => put(parts, maker, callerOf(request), body),
  )
  identity.route(
    'POST',
    `${path}/rotate`,
    {
      operationId: 'rotateIdentityKey',
      summary: 'Make a new key for identity tokens',
      description: 'It signs after 10 minutes. The key before it stays in jwks.json for 24 hours more.',
    },
    ({ request }) => rotate(parts, maker, callerOf(request)),
  )
  identity.remove(
    {
      summary: 'Destroy the issuer of identity tokens, with its keys',
      description: 'Servers get no more tokens, and its public documents are gone.',
    },
    (tx, { accountId }) => deleteIssuer(tx, accountId),
  )
}

/** Makes or changes an issuer. Its key is made before the change, which has a connection of the database. */
async function put(
  { db, accounts, site, encryptsRecords }: ResourceParts,
  maker: KeyMaker,
  caller: AccountRequester,
  body: Static<typeof Change>,
): Promise<Representation> {
  const { accountId } = caller
  const issuer = `${site.baseUrl}/oidc/${accountId}`
  const refusal = newIssuerRefusal(encryptsRecords, issuer, body)
  const isNew = refusal === undefined && (await findIssuer(db, accountId)) === undefined
  const key = isNew ? await maker.make(accountId, body.algorithm ?? DEFAULTS.algorithm) : undefined
  return accounts.commit(caller, async (tx) => {
    const current = await findIssuer(tx, accountId)
    if (current !== undefined) await updateIssuer(tx, accountId, changed(current, body))
    else if (refusal !== undefined) throw refusal
    else if (key === undefined) throw refuse('resource_conflict', 'the identity was deleted meanwhile: try again')
    else await createIssuer(tx, accountId, issuer, { ...DEFAULTS, audiences: [], ...fieldsOf(body) }, key)
    return formatIssuer(await requireIssuer(tx, accountId))
  })
}

/** Gives an issuer a new key, which is made before the change too. */
async function rotate(
  { db, accounts }: ResourceParts,
  maker: KeyMaker,
  caller: AccountRequester,
): Promise<Representation> {
  const { accountId } = caller
  const before = await findIssuer(db, accountId)
  // checked again in its turn, with the state of the account
  const refused = before === undefined || rotationRefusal(before, Date.now()) !== undefined
  const key = refused ? undefined : await maker.make(accountId, before.algorithm)
  return accounts.commit(caller, async (tx) => {
    await rotateKeys(tx, accountId, key)
    return formatIssuer(await requireIssuer(tx, accountId))
  })
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

function fieldsOf({ audiences, ...others }: Static<typeof Change>): Partial<IssuerFields> {
  return { ...others, ...(audiences !== undefined && { audiences: [...new Set(audiences)] }) }
}

/** The fields of a change that differ: if none does, nothing is published. */
function changed(current: AccountIssuer, body: Static<typeof Change>): Partial<IssuerFields> {
  const fields = Object.entries(fieldsOf(body))
  return Object.fromEntries(
    fields.filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(current[name as keyof IssuerFields])),
  )
}

/** `id`: that of its account, which responses do not show. No key has its private part. */
function formatIssuer({ account_id: id, created_at, keys, ...row }: AccountIssuer): Representation {
  return {
    ...row,
    id,
    created_at: formatTime(created_at),
    keys: keys.map(({ kid, algorithm, signs_from, retires_at }) => ({
      kid,
      algorithm,
      signs_from: formatTime(signs_from),
      retires_at: formatOptionalTime(retires_at),
    })),
  }
}
