/**
 * OAuth applications: programs with which users sign in, such as a dashboard or a command line. They belong to an
 * account as API clients do, but act for the users that sign in.
 *
 * An application is created without a secret: reset_secret makes its first one, and each later one. DELETE revokes an
 * application. Nobody can sign in with it any more, the tokens that its users have end at once, and it stays readable
 * with `revoked_at`, but is in no list.
 */
import type { InferResult } from 'kysely'
import Type, { type Static } from 'typebox'
import { digest, newSecret } from '../auth/secrets.ts'
import { revokeFamilies } from '../auth/token-families.ts'
import { nextId } from '../changes/allocate.ts'
import { lockClient, revokeClient, setSecret } from '../changes/clients.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Reader } from '../database/transaction.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { noSuch } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, equals } from './lists.ts'
import { Members } from './members.ts'
import {
  ACCOUNT_COLUMNS,
  accountOf,
  NESTED,
  NullableTime,
  reference,
  representation,
  type Site,
  Time,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

const Collected = representation('CollectedApplication', RESOURCES.application, {
  name: Type.String(),
  description: Type.String(),
  created_at: Time,
  revoked_at: NullableTime,
  account: NESTED.account.schema,
})
const Application = Type.Object(
  {
    ...Collected.properties,
    secret: Type.Union([Type.String(), Type.Null()], { description: 'null, except in the response of reset_secret.' }),
  },
  { title: 'Application' },
)
const Body = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 255, format: 'line' })),
    description: Type.Optional(Type.Union([Type.String({ maxLength: 4096 }), Type.Null()])),
  },
  { title: 'ApplicationFields', examples: [{ name: 'Dashboard', description: 'Sign-in of operators' }] },
)

/** Adds the routes. A deletion empties the cache of access tokens. */
export function addApplicationRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, tokens, site } = parts
  const load = (database: Reader, accountId: string, id: string) => loadApplication(database, site, accountId, id)
  const applications = new Members(server, parts, RESOURCES.application, Application, load)

  addList(server, RESOURCES.application, {
    description: 'Those of the account that are not deleted.',
    form: Collected,
    filters: { name: equals('applications.name') },
    select: ({ caller }) => selectApplications(db, caller.accountId).where('applications.revoked_at', 'is', null),
    represent: (rows) => rows.map((row) => collectedApplication(site, row)),
  })
  applications.get('A deleted one has revoked_at.')
  applications.create(
    { description: 'It has no secret yet: reset_secret returns its first one.', body: Body, status: 201 },
    async (tx, { accountId, body: { name = '', description } }) => {
      await refuseBeyondLimit(tx, accountId, 'applications_limit')
      const id = await nextId(tx, 'app')
      await tx
        .insertInto('applications')
        .values({ id, account_id: accountId, name, description: description ?? '', secret_sha256: null })
        .execute()
      return id
    },
  )
  applications.update(
    { description: 'Its name and description. Fields that are left out stay.', body: Body },
    async (tx, { accountId, id, body }) => {
      const current = await lockClient(tx, 'applications', accountId, id)
      const { name = current.name, description = current.description } = body
      const values = { name, description: description ?? '' }
      await tx.updateTable('applications').set(values).where('id', '=', id).execute()
    },
  )
  applications.end(
    {
      description: 'The tokens of its users end at once. It stays readable, with revoked_at.',
      change: 'DELETE /applications/ID',
      committed: () => {
        tokens.clearCache()
      },
    },
    async (tx, { accountId, id }) => {
      await revokeClient(tx, 'applications', accountId, id)
      await revokeFamilies(tx, 'application_id', [id])
    },
  )
  applications.change(
    'POST',
    '/applications/:id/reset_secret',
    {
      operationId: 'resetApplicationSecret',
      summary: 'Get a new secret for an application',
      description: 'The response is the only one that has it. Tokens that were issued before stay valid.',
      change: 'POST /applications/ID/reset_secret',
    },
    async (tx, { accountId, id }) => {
      const secret = newSecret()
      await setSecret(tx, 'applications', accountId, id, digest(secret))
      return { ...(await load(tx, accountId, id)), secret }
    },
  )
}

function selectApplications(database: Reader, accountId: string) {
  return database
    .selectFrom('applications')
    .innerJoin('accounts', 'accounts.id', 'applications.account_id')
    .select([
      'applications.id',
      'applications.name',
      'applications.description',
      'applications.created_at',
      'applications.revoked_at',
      ...ACCOUNT_COLUMNS,
    ])
    .where('applications.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectApplications>>[number]

async function loadApplication(
  database: Reader,
  site: Site,
  accountId: string,
  id: string,
): Promise<Static<typeof Application>> {
  const row = await selectApplications(database, accountId)
    .where('applications.id', '=', id)
    .executeTakeFirstOrThrow(() => noSuch('application', id))
  return { ...collectedApplication(site, row), secret: null }
}

function collectedApplication(site: Site, row: Row): Static<typeof Collected> {
  return {
    ...reference(site, RESOURCES.application, row.id),
    name: row.name,
    description: row.description,
    created_at: formatTime(row.created_at),
    revoked_at: formatOptionalTime(row.revoked_at),
    account: accountOf(site, row),
  }
}
