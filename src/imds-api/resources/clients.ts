/**
 * API clients: programs that get access tokens for their account with an id and a secret. And OAuth applications:
 * programs with which users sign in, such as a dashboard or a command line, and that act for these users.
 *
 * Both are created without a secret: reset_secret makes the first one, and each later one. DELETE revokes one: it gets no
 * more tokens, and its tokens, or those of its users, end at once. It stays readable with `revoked_at`, but is in no
 * list. What changes the right to tokens empties the cache of access tokens.
 */
import Type, { type Static } from 'typebox'
import { digest, newSecret } from '../auth/secrets.ts'
import { revokeFamilies } from '../auth/token-families.ts'
import { nextId } from '../changes/allocate.ts'
import { lockClient, revokeClient, rotateSecret } from '../changes/clients.ts'
import { missingGroups } from '../changes/server-groups.ts'
import type { Tx } from '../database/transaction.ts'
import { refuseAny } from '../model/refusal.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import { addRow, setValues } from '../changes/own-rows.ts'
import { MAX_KEEP_OLD_SECONDS, MAX_NETWORKS } from '../model/client-limits.ts'
import { formatTime } from '../model/time.ts'
import { Field, fixed, formsOf } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import { ACCOUNT, NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenDescription, givenTexts, nullable, NullableTime, Secret, Time } from './kit/schemas.ts'

const ReadOnly = Type.Boolean({ description: 'An extension. true: only GET and HEAD are allowed.' })
/** The extensions are only in the form of a client that has these limits. */
const API_CLIENT = formsOf(
  'apiClient',
  { ...NESTED.apiClient.fields, description: Type.String(), account: ACCOUNT },
  {
    read_only: new Field(Type.Optional(ReadOnly), 'read_only', (is: boolean) => (is ? true : undefined)),
    expires_at: new Field(
      Type.Optional(
        Type.String({
          format: 'date-time',
          description: 'An extension. From then on it gets no tokens, and has none.',
        }),
      ),
      'expires_at',
      (time: Date | null) => (time === null ? undefined : formatTime(time)),
    ),
    allow_access: new Field(
      Type.Optional(
        Type.Array(Type.String(), { description: 'An extension. The networks from which it may be used.' }),
      ),
      'allow_access',
      (networks: readonly string[]) => (networks.length > 0 ? networks : undefined),
    ),
    secret: fixed(Secret, null),
  },
  { title: 'FullApiClient' }, // OpenAPI Generator makes a class ApiClient of its own
)
const ClientBody = Type.Partial(
  Type.Object({
    name: Type.String({ maxLength: 255, format: 'line' }),
    description: GivenDescription,
    permissions_group: Type.Union([Type.Literal('full'), Type.Literal('storage')], {
      description: 'storage: no scope infrastructure.',
    }),
    read_only: ReadOnly,
    expires_at: nullable(Type.String({ format: 'timestamp' }), {
      description: 'An extension. From then on it gets no tokens, and has none. null: never.',
    }),
    allow_access: Type.Array(Type.String({ format: 'network' }), {
      maxItems: MAX_NETWORKS,
      description: 'An extension. The networks from which it may be used; empty: all.',
    }),
    trusted_servers: nullable(Type.String(), {
      description: 'An extension. The server group whose servers may act as it, without a secret. null: none.',
    }),
  }),
  { title: 'ApiClientFields', examples: [{ name: 'backup', permissions_group: 'full' }] },
)
const SecretBody = Type.Partial(
  Type.Object({
    keep_old_seconds: Type.Integer({
      minimum: 0,
      maximum: MAX_KEEP_OLD_SECONDS,
      description: 'An extension. How long the present secret stays valid beside the new one.',
    }),
  }),
  { title: 'SecretReset', examples: [{ keep_old_seconds: 3600 }] },
)

export function addApiClientRoutes(parts: ResourceParts): void {
  const clients = new Members(parts, API_CLIENT)
  const onCommit = () => parts.tokens.clearCache()

  clients.list({ description: 'Those of the account that are not deleted.' })
  clients.get('A deleted one has revoked_at.')
  clients.create(
    { description: 'It has no secret yet: reset_secret returns its first one.', body: ClientBody, status: 201 },
    async ({ tx, accountId, body }) => {
      await refuseBeyondLimit(tx, accountId, 'api_clients_limit')
      await lockTrusted(tx, accountId, body)
      const id = await nextId(tx, 'cli')
      const empty = { name: '', description: '', permissions_group: 'full' } as const
      await addRow(tx, 'api_clients', { id, account_id: accountId, ...empty, ...valuesOf(body) })
      return id
    },
  )
  clients.update(
    {
      description: 'Its name, description, and what it may do. Fields that are left out stay.',
      body: ClientBody,
      rule: (body) =>
        isOnlyLowering(body) ? 'PUT /api_clients/ID with only `permissions_group`, to `storage`' : 'every other change',
      onCommit,
    },
    async ({ tx, accountId, id, body }) => {
      await lockClient(tx, 'apiClient', accountId, id)
      await lockTrusted(tx, accountId, body)
      await setValues(tx, 'api_clients', id, valuesOf(body))
    },
  )
  clients.end(
    { description: 'Its access tokens end at once. It stays readable, with revoked_at.', onCommit },
    async ({ tx, accountId, id }) => {
      await revokeClient(tx, 'apiClient', accountId, id)
      await tx.deleteFrom('access_tokens').where('client_id', '=', id).execute()
    },
  )
  clients.action(
    'reset_secret',
    {
      operationId: 'resetApiClientSecret',
      summary: 'Get a new secret for an API client',
      description:
        'The response is the only one that has it. Access tokens that were issued before stay valid. ' +
        'The former secret is wrong from then on, unless keep_old_seconds keeps it for a while.',
      body: SecretBody,
    },
    async ({ tx, accountId, id, body }) => {
      const secret = newSecret()
      await rotateSecret(tx, accountId, id, digest(secret), body.keep_old_seconds ?? 0)
      return { secret }
    },
  )
}

const APPLICATION = formsOf(
  'application',
  {
    name: Type.String(),
    description: Type.String(),
    created_at: Time,
    revoked_at: NullableTime,
    account: ACCOUNT,
  },
  { secret: fixed(Secret, null) },
)
const ApplicationBody = Type.Partial(
  Type.Object({ name: Type.String({ maxLength: 255, format: 'line' }), description: GivenDescription }),
  { title: 'ApplicationFields', examples: [{ name: 'Dashboard', description: 'Sign-in of operators' }] },
)

export function addApplicationRoutes(parts: ResourceParts): void {
  const applications = new Members(parts, APPLICATION)

  applications.list({ description: 'Those of the account that are not deleted.' })
  applications.get('A deleted one has revoked_at.')
  applications.create(
    { description: 'It has no secret yet: reset_secret returns its first one.', body: ApplicationBody, status: 201 },
    async ({ tx, accountId, body: { name = '', description } }) => {
      await refuseBeyondLimit(tx, accountId, 'applications_limit')
      const id = await nextId(tx, 'app')
      const texts = { name, description: description ?? '' }
      await addRow(tx, 'applications', { id, account_id: accountId, ...texts })
      return id
    },
  )
  applications.update(
    { description: 'Its name and description. Fields that are left out stay.', body: ApplicationBody },
    async ({ tx, accountId, id, body }) => {
      await lockClient(tx, 'application', accountId, id)
      await setValues(tx, 'applications', id, givenTexts(body))
    },
  )
  applications.end(
    {
      description: 'The tokens of its users end at once. It stays readable, with revoked_at.',
      onCommit: () => parts.tokens.clearCache(),
    },
    async ({ tx, accountId, id }) => {
      await revokeClient(tx, 'application', accountId, id)
      await revokeFamilies(tx, 'application_id', [id])
    },
  )
  applications.action(
    'reset_secret',
    {
      operationId: 'resetApplicationSecret',
      summary: 'Get a new secret for an application',
      description: 'The response is the only one that has it. Tokens that were issued before stay valid.',
    },
    async ({ tx, accountId, id }) => {
      const secret = newSecret()
      await lockClient(tx, 'application', accountId, id)
      await setValues(tx, 'applications', id, { secret_sha256: digest(secret) })
      return { secret }
    },
  )
}

function valuesOf({ description, expires_at: time, ...values }: Static<typeof ClientBody>) {
  return {
    ...values,
    ...givenTexts({ description }),
    ...(time !== undefined && { expires_at: time === null ? null : new Date(time) }),
  }
}

/** Locks the group of servers that a client is to trust, against a delete. Refuses one that the account does not have. */
async function lockTrusted(tx: Tx, accountId: string, { trusted_servers: group }: Static<typeof ClientBody>) {
  refuseAny('unprocessable_entity', await missingGroups(tx, accountId, group == null ? [] : [group], 'trusted_servers'))
}

/** True for a change that only withdraws access: it takes the scope `infrastructure` from a client. */
function isOnlyLowering({ permissions_group, ...others }: Static<typeof ClientBody>): boolean {
  return permissions_group === 'storage' && Object.keys(others).length === 0
}
