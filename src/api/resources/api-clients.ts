/**
 * API clients: programs that get access tokens for their account with an id and a secret.
 *
 * A client is created without a secret: reset_secret makes its first one, and each later one. DELETE revokes a client:
 * it gets no more tokens, and its tokens end at once. It stays readable with `revoked_at`, but is in no list.
 */
import type { InferResult } from 'kysely'
import Type, { type Static } from 'typebox'
import { digest, newSecret } from '../auth/secrets.ts'
import type { AccessTokens } from '../auth/tokens.ts'
import { nextId } from '../changes/allocate.ts'
import { lockClient, revokeClient, setSecret } from '../changes/clients.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Reader } from '../database/transaction.ts'
import { noSuch } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import {
  API_CLIENT_COLUMNS,
  listOf,
  NestedAccount,
  nestedAccount,
  NestedApiClient,
  nestedApiClient,
  type Site,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Collected = Type.Object(
  { ...NestedApiClient.properties, account: NestedAccount },
  { title: 'CollectedApiClient' },
)
const ApiClient = Type.Object(
  {
    ...Collected.properties,
    secret: Type.Union([Type.String(), Type.Null()], { description: 'null, except in the response of reset_secret.' }),
  },
  { title: 'ApiClient' },
)
const Body = Type.Object({
  name: Type.Optional(Type.String({ maxLength: 255, format: 'line' })),
  description: Type.Optional(Type.Union([Type.String({ maxLength: 4096 }), Type.Null()])),
  permissions_group: Type.Optional(
    Type.Union([Type.Literal('full'), Type.Literal('storage')], { description: 'storage: no scope infrastructure.' }),
  ),
})

const TAGS = ['API clients']
const Params = Type.Object({ id: Type.String() })

/** Adds the routes. A change of what a client may do empties the cache of `tokens`. */
export function addApiClientRoutes(
  server: ApiServer,
  { db, accounts, site }: ResourceParts,
  tokens: AccessTokens,
): void {
  server.get(
    '/api_clients',
    { schema: { summary: 'List API clients', tags: TAGS, response: { 200: listOf(Collected) } } },
    async ({ caller }) =>
      (
        await selectClients(db, caller.accountId)
          .where('api_clients.revoked_at', 'is', null)
          .orderBy('api_clients.created_at')
          .orderBy('api_clients.id')
          .execute()
      ).map((row) => collect(site, row)),
  )

  server.get(
    '/api_clients/:id',
    { schema: { summary: 'Get an API client', tags: TAGS, params: Params, response: { 200: ApiClient } } },
    async ({ caller, params }) => await load(db, site, caller.accountId, params.id),
  )

  server.post(
    '/api_clients',
    {
      schema: {
        summary: 'Create an API client',
        description: 'It has no secret yet: reset_secret returns its first one.',
        tags: TAGS,
        body: Body,
        response: { 201: ApiClient },
      },
    },
    async ({ caller, caller: { accountId }, body }, reply) =>
      reply.code(201).send(
        await accounts.commit(caller, async (tx) => {
          await refuseBeyondLimit(tx, accountId, 'api_clients_limit')
          const id = await nextId(tx, 'cli')
          const { name = '', description, permissions_group = 'full' } = body
          await tx
            .insertInto('api_clients')
            .values({
              id,
              account_id: accountId,
              name,
              description: description ?? '',
              permissions_group,
              secret_sha256: null,
              revoked_at: null,
            })
            .execute()
          return load(tx, site, accountId, id)
        }),
      ),
  )

  server.put(
    '/api_clients/:id',
    {
      schema: { summary: 'Change an API client', tags: TAGS, params: Params, body: Body, response: { 200: ApiClient } },
    },
    async ({ caller, caller: { accountId }, params: { id }, body }) => {
      const result = await accounts.commit(
        caller,
        async (tx) => {
          const current = await lockClient(tx, 'api_clients', accountId, id)
          const {
            name = current.name,
            description = current.description,
            permissions_group = current.permissions_group,
          } = body
          await tx
            .updateTable('api_clients')
            .set({ name, description: description ?? '', permissions_group })
            .where('id', '=', id)
            .execute()
          return load(tx, site, accountId, id)
        },
        isOnlyLowering(body) ? 'PUT /api_clients/ID with only `permissions_group`, to `storage`' : 'every other change',
      )
      tokens.forget()
      return result
    },
  )

  server.delete(
    '/api_clients/:id',
    {
      schema: {
        summary: 'Delete an API client',
        description: 'Its access tokens end at once. It stays readable, with revoked_at.',
        tags: TAGS,
        params: Params,
        response: { 200: ApiClient },
      },
    },
    async ({ caller, caller: { accountId }, params: { id } }) => {
      const result = await accounts.commit(
        caller,
        async (tx) => {
          await revokeClient(tx, 'api_clients', accountId, id)
          await tx.deleteFrom('access_tokens').where('client_id', '=', id).execute()
          return load(tx, site, accountId, id)
        },
        'DELETE /api_clients/ID',
      )
      tokens.forget()
      return result
    },
  )

  server.post(
    '/api_clients/:id/reset_secret',
    {
      schema: {
        summary: 'Get a new secret for an API client',
        description: 'The response is the only one that has it. Access tokens that were issued before stay valid.',
        tags: TAGS,
        params: Params,
        response: { 200: ApiClient },
      },
    },
    async ({ caller, caller: { accountId }, params: { id } }) =>
      await accounts.commit(
        caller,
        async (tx) => {
          const secret = newSecret()
          await setSecret(tx, 'api_clients', accountId, id, digest(secret))
          return { ...(await load(tx, site, accountId, id)), secret }
        },
        'POST /api_clients/ID/reset_secret',
      ),
  )
}

/** True for a change that only withdraws access: it takes the scope `infrastructure` from a client. */
function isOnlyLowering({ name, description, permissions_group }: Static<typeof Body>): boolean {
  return name === undefined && description === undefined && permissions_group === 'storage'
}

function selectClients(database: Reader, accountId: string) {
  return database
    .selectFrom('api_clients')
    .innerJoin('accounts', 'accounts.id', 'api_clients.account_id')
    .select([
      ...API_CLIENT_COLUMNS,
      'accounts.id as account_id',
      'accounts.name as account_name',
      'accounts.status as account_status',
    ])
    .where('api_clients.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectClients>>[number]

async function load(database: Reader, site: Site, accountId: string, id: string): Promise<Static<typeof ApiClient>> {
  const row = await selectClients(database, accountId).where('api_clients.id', '=', id).executeTakeFirst()
  if (row === undefined) throw noSuch('API client', id)
  return { ...collect(site, row), secret: null }
}

function collect(site: Site, row: Row): Static<typeof Collected> {
  return {
    ...nestedApiClient(site, row),
    account: nestedAccount(site, { id: row.account_id, name: row.account_name, status: row.account_status }),
  }
}
