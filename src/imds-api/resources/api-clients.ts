/**
 * API clients: programs that get access tokens for their account with an id and a secret.
 *
 * A client is created without a secret: reset_secret makes its first one, and each later one. DELETE revokes a client:
 * it gets no more tokens, and its tokens end at once. It stays readable with `revoked_at`, but is in no list.
 */
import Type, { type Static } from 'typebox'
import { digest, newSecret } from '../auth/secrets.ts'
import { nextId } from '../changes/allocate.ts'
import { lockClient, revokeClient, rotateSecret } from '../changes/clients.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { ApiServer } from '../http/server.ts'
import { MAX_KEEP_OLD_SECONDS, MAX_NETWORKS } from '../model/client-limits.ts'
import { formatTime } from '../model/time.ts'
import { Field, fixed, Form } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import { ACCOUNT, NESTED } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { GivenDescription, nullable, Secret } from './kit/schemas.ts'
import { RESOURCES } from './kit/table.ts'

const COLLECTED = { ...NESTED.apiClient.fields, account: ACCOUNT }
const Collected = new Form(RESOURCES.apiClient, 'CollectedApiClient', COLLECTED)
const ApiClient = new Form(RESOURCES.apiClient, 'ApiClient', {
  ...COLLECTED,
  // only of a client that has these limits
  read_only: new Field(
    Type.Optional(Type.Boolean({ description: 'An extension. true: only GET and HEAD are allowed.' })),
    'read_only',
    (is: boolean) => (is ? true : undefined),
  ),
  expires_at: new Field(
    Type.Optional(
      Type.String({ format: 'date-time', description: 'An extension. From then on it gets no tokens, and has none.' }),
    ),
    'expires_at',
    (time: Date | null) => (time === null ? undefined : formatTime(time)),
  ),
  allow_access: new Field(
    Type.Optional(Type.Array(Type.String(), { description: 'An extension. The networks from which it may be used.' })),
    'allow_access',
    (networks: readonly string[]) => (networks.length > 0 ? networks : undefined),
  ),
  secret: fixed(Secret, null),
})
const Body = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 255, format: 'line' })),
    description: Type.Optional(GivenDescription),
    permissions_group: Type.Optional(
      Type.Union([Type.Literal('full'), Type.Literal('storage')], { description: 'storage: no scope infrastructure.' }),
    ),
    read_only: Type.Optional(Type.Boolean({ description: 'An extension. true: only GET and HEAD are allowed.' })),
    expires_at: Type.Optional(
      nullable(Type.String({ format: 'timestamp' }), {
        description: 'An extension. From then on it gets no tokens, and has none. null: never.',
      }),
    ),
    allow_access: Type.Optional(
      Type.Array(Type.String({ format: 'network' }), {
        maxItems: MAX_NETWORKS,
        description: 'An extension. The networks from which it may be used; empty: all.',
      }),
    ),
  },
  { title: 'ApiClientFields', examples: [{ name: 'backup', permissions_group: 'full' }] },
)
const SecretBody = Type.Object(
  {
    keep_old_seconds: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: MAX_KEEP_OLD_SECONDS,
        description: 'An extension. How long the present secret stays valid beside the new one.',
      }),
    ),
  },
  { title: 'SecretReset', examples: [{ keep_old_seconds: 3600 }] },
)

/** Adds the routes. A change of what a client may do empties the cache of access tokens. */
export function addApiClientRoutes(server: ApiServer, parts: ResourceParts): void {
  const clients = new Members(server, parts, { form: ApiClient, collected: Collected })
  const onCommit = () => {
    parts.tokens.clearCache()
  }

  clients.list({ description: 'Those of the account that are not deleted.' })
  clients.get('A deleted one has revoked_at.')
  clients.create(
    { description: 'It has no secret yet: reset_secret returns its first one.', body: Body, status: 201 },
    async (tx, { accountId, body }) => {
      await refuseBeyondLimit(tx, accountId, 'api_clients_limit')
      const id = await nextId(tx, 'cli')
      const { name = '', description, permissions_group = 'full', read_only = false, allow_access = [] } = body
      await tx
        .insertInto('api_clients')
        .values({
          ...{ id, account_id: accountId, name, description: description ?? '', permissions_group, read_only },
          ...{ expires_at: timeOf(body.expires_at), allow_access, secret_sha256: null, revoked_at: null },
        })
        .execute()
      return id
    },
  )
  clients.update(
    {
      description: 'Its name, description, and what it may do. Fields that are left out stay.',
      body: Body,
      rule: (body) =>
        isOnlyLowering(body) ? 'PUT /api_clients/ID with only `permissions_group`, to `storage`' : 'every other change',
      onCommit,
    },
    async (tx, { accountId, id, body }) => {
      const current = await lockClient(tx, 'apiClient', accountId, id)
      const {
        name = current.name,
        description = current.description,
        permissions_group = current.permissions_group,
        read_only = current.read_only,
        allow_access = current.allow_access,
      } = body
      const expires_at = body.expires_at === undefined ? current.expires_at : timeOf(body.expires_at)
      await tx
        .updateTable('api_clients')
        .set({ name, description: description ?? '', permissions_group, read_only, expires_at, allow_access })
        .where('id', '=', id)
        .execute()
    },
  )
  clients.end(
    {
      description: 'Its access tokens end at once. It stays readable, with revoked_at.',
      rule: 'DELETE /api_clients/ID',
      onCommit,
    },
    async (tx, { accountId, id }) => {
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
      rule: 'POST /api_clients/ID/reset_secret',
    },
    async (tx, { accountId, id, body }) => {
      const secret = newSecret()
      await rotateSecret(tx, accountId, id, digest(secret), body.keep_old_seconds ?? 0)
      return { secret }
    },
  )
}

function timeOf(text: string | null | undefined): Date | null {
  return text === undefined || text === null ? null : new Date(text)
}

/** True for a change that only withdraws access: it takes the scope `infrastructure` from a client. */
function isOnlyLowering({ permissions_group, ...others }: Static<typeof Body>): boolean {
  return permissions_group === 'storage' && Object.values<unknown>(others).every((value) => value === undefined)
}
