/**
 * OAuth applications: programs with which users sign in, such as a dashboard or a command line. They belong to an
 * account as API clients do, but act for the users that sign in.
 *
 * An application is created without a secret: reset_secret makes its first one, and each later one. DELETE revokes an
 * application. Nobody can sign in with it any more, the tokens that its users have end at once, and it stays readable
 * with `revoked_at`, but is in no list.
 */
import Type from 'typebox'
import { digest, newSecret } from '../auth/secrets.ts'
import { revokeFamilies } from '../auth/token-families.ts'
import { nextId } from '../changes/allocate.ts'
import { lockClient, revokeClient, setSecret } from '../changes/clients.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { ApiServer } from '../http/server.ts'
import { fixed, Form } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import { ACCOUNT } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { GivenDescription, NullableTime, Secret, Time } from './kit/schemas.ts'
import { RESOURCES } from './kit/table.ts'

const COLLECTED = {
  name: Type.String(),
  description: Type.String(),
  created_at: Time,
  revoked_at: NullableTime,
  account: ACCOUNT,
}
const Collected = new Form(RESOURCES.application, 'CollectedApplication', COLLECTED)
const Application = new Form(RESOURCES.application, 'Application', { ...COLLECTED, secret: fixed(Secret, null) })
const Body = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 255, format: 'line' })),
    description: Type.Optional(GivenDescription),
  },
  { title: 'ApplicationFields', examples: [{ name: 'Dashboard', description: 'Sign-in of operators' }] },
)

/** Adds the routes. A deletion empties the cache of access tokens. */
export function addApplicationRoutes(server: ApiServer, parts: ResourceParts): void {
  const applications = new Members(server, parts, { form: Application, collected: Collected })

  applications.list({ description: 'Those of the account that are not deleted.' })
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
      const current = await lockClient(tx, 'application', accountId, id)
      const { name = current.name, description = current.description } = body
      const values = { name, description: description ?? '' }
      await tx.updateTable('applications').set(values).where('id', '=', id).execute()
    },
  )
  applications.end(
    {
      description: 'The tokens of its users end at once. It stays readable, with revoked_at.',
      rule: 'DELETE /applications/ID',
      onCommit: () => {
        parts.tokens.clearCache()
      },
    },
    async (tx, { accountId, id }) => {
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
      rule: 'POST /applications/ID/reset_secret',
    },
    async (tx, { accountId, id }) => {
      const secret = newSecret()
      await setSecret(tx, 'application', accountId, id, digest(secret))
      return { secret }
    },
  )
}
