/**
 * Collaborations. A collaboration gives a user access to another user's account. The account invites an e-mail address,
 * and the user with this verified address accepts. model/collaboration.ts has the states. An invitation shows no user
 * before it is accepted, so that an account cannot find out whether a user has the address.
 */
import type { FastifyRequest } from 'fastify'
import { sql, type InferResult } from 'kysely'
import { jsonObjectFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import { accountsOf, type Caller } from '../auth/account-choice.ts'
import { outsiderOf } from '../auth/requester.ts'
import type { Identity } from '../auth/tokens.ts'
import { nextId } from '../changes/allocate.ts'
import { forgetFinished } from '../changes/kept-rows.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import type { ChangeRequest } from '../model/account-states.ts'
import {
  addResend,
  COLLABORATION_STATES,
  INVITATION_LIMIT,
  nextStatus,
  RESEND_LIMIT,
  resendWaitSeconds,
  ROLES,
  type CollaborationStatus,
  type CollaborationTrigger,
  type Role,
} from '../model/collaboration.ts'
import { isEmailAddress } from '../model/email-address.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { fieldFault, noSuch, refuse, Refusal } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import {
  identity,
  listOf,
  NestedAccount,
  nestedAccount,
  NestedUser,
  nestedUser,
  NullableTime,
  representation,
  type Site,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'

/** The full form, which is the collected form too. */
const Collaboration = representation('Collaboration', 'collaboration', {
  email: Type.String(),
  role: Type.String(),
  role_label: Type.String(),
  status: Type.Enum([...COLLABORATION_STATES]),
  created_at: Type.String(),
  started_at: NullableTime,
  finished_at: NullableTime,
  user: Type.Union([NestedUser, Type.Null({ description: 'The invitation is not accepted.' })]),
  account: NestedAccount,
  inviter: Type.Union([NestedUser, Type.Null()]),
})
type Collaboration = Static<typeof Collaboration>
const Create = Type.Object({ email: Type.String(), role: Type.Enum(Object.keys(ROLES) as Role[]) })

const TAGS = ['Collaborations']
const Params = Type.Object({ id: Type.String() })
/** The path of collaborations for each side, the account and the user. */
const PATHS = { account: 'collaborations', user: 'user/collaborations' } as const
type Side = keyof typeof PATHS

/** Adds the account's side. */
export function addCollaborationRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  server.get(
    '/collaborations',
    {
      schema: {
        summary: 'List the collaborations of the account',
        tags: TAGS,
        response: { 200: listOf(Collaboration) },
      },
    },
    async ({ caller }) =>
      (
        await ofAccount(db, caller.accountId)
          .orderBy('collaborations.created_at')
          .orderBy('collaborations.id')
          .execute()
      ).map((row) => represent(site, 'account', row)),
  )

  server.get(
    '/collaborations/:id',
    { schema: { summary: 'Get a collaboration', tags: TAGS, params: Params, response: { 200: Collaboration } } },
    async ({ caller, params: { id } }) => await load(db, caller.accountId, id),
  )

  server.post(
    '/collaborations',
    {
      schema: {
        summary: 'Invite somebody to the account',
        description: 'Refused (409) for an address that is invited or has access already.',
        tags: TAGS,
        body: Create,
        response: { 201: Collaboration },
      },
    },
    async ({ caller, body }, reply) =>
      reply.code(201).send(
        await accounts.commit(caller, async (tx) => {
          const id = await invite(tx, caller, body)
          return load(tx, caller.accountId, id)
        }),
      ),
  )

  server.post(
    '/collaborations/:id/resend',
    { schema: { summary: 'Send the invitation again', tags: TAGS, params: Params, response: { 200: Collaboration } } },
    async ({ caller, caller: { accountId }, params: { id } }) =>
      await accounts.commit(caller, async (tx) => {
        await move(tx, ofAccount(tx, accountId), id, 'resend')
        return load(tx, accountId, id)
      }),
  )

  server.delete(
    '/collaborations/:id',
    {
      schema: {
        summary: 'Cancel an invitation, or end an accepted collaboration',
        tags: TAGS,
        params: Params,
        response: { 200: Collaboration },
      },
    },
    async ({ caller, caller: { accountId }, params: { id } }) =>
      await accounts.commit(
        caller,
        async (tx) => {
          await move(tx, ofAccount(tx, accountId), id, 'remove')
          return load(tx, accountId, id)
        },
        'DELETE /collaborations/ID',
      ),
  )

  async function load(database: Reader, accountId: string, id: string): Promise<Collaboration> {
    const row = await ofAccount(database, accountId).where('collaborations.id', '=', id).executeTakeFirst()
    if (row === undefined) throw noSuch('collaboration', id)
    return represent(site, 'account', row)
  }
}

/** Adds the user's side. API clients are refused, even for ids that do not exist. A user need not name an account. */
export function addUserCollaborationRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  server.get(
    '/user/collaborations',
    {
      schema: {
        summary: 'List your collaborations and invitations',
        tags: TAGS,
        response: { 200: listOf(Collaboration) },
      },
    },
    async ({ identity }) =>
      await asUser(identity, async (userId) =>
        (await ofUser(db, userId).orderBy('collaborations.created_at').orderBy('collaborations.id').execute()).map(
          (row) => represent(site, 'user', row),
        ),
      ),
  )

  server.get(
    '/user/collaborations/:id',
    {
      schema: {
        summary: 'Get one of your collaborations',
        tags: TAGS,
        params: Params,
        response: { 200: Collaboration },
      },
    },
    async ({ identity, params: { id } }) => await asUser(identity, (userId) => load(db, userId, id)),
  )

  server.post(
    '/user/collaborations/:id/accept',
    {
      schema: {
        summary: 'Accept an invitation',
        description: 'Gives access to the account.',
        tags: TAGS,
        params: Params,
        response: { 200: Collaboration },
      },
    },
    async (request) => await changeAsUser(request, 'accept', 'POST /user/collaborations/ID/accept'),
  )

  server.post(
    '/user/collaborations/:id/reject',
    { schema: { summary: 'Reject an invitation', tags: TAGS, params: Params, response: { 200: Collaboration } } },
    async (request) => await changeAsUser(request, 'reject', 'POST /user/collaborations/ID/reject'),
  )

  server.delete(
    '/user/collaborations/:id',
    {
      schema: {
        summary: 'End an accepted collaboration',
        description: 'Takes the access away at once.',
        tags: TAGS,
        params: Params,
        response: { 200: Collaboration },
      },
    },
    async (request) => await changeAsUser(request, 'leave', 'DELETE /user/collaborations/ID'),
  )

  async function load(database: Reader, userId: string, id: string): Promise<Collaboration> {
    const row = await ofUser(database, userId).where('collaborations.id', '=', id).executeTakeFirst()
    if (row === undefined) throw noSuch('collaboration', id)
    return represent(site, 'user', row)
  }

  async function changeAsUser(
    request: FastifyRequest<{ Params: Static<typeof Params> }>,
    trigger: CollaborationTrigger,
    kind: ChangeRequest,
  ): Promise<Collaboration> {
    const {
      identity,
      params: { id },
    } = request
    return asUser(identity, async (userId) => {
      const found = await ofUser(db, userId).where('collaborations.id', '=', id).executeTakeFirst()
      if (found === undefined) throw noSuch('collaboration', id)
      return accounts.commit(
        outsiderOf(request, found.account_id),
        async (tx) => {
          if (trigger === 'accept' && (await accountsOf(tx, userId)).includes(found.account_id))
            throw refuse('resource_conflict', `you have access to ${found.account_id} already`)
          await move(tx, ofUser(tx, userId), id, trigger, userId)
          return load(tx, userId, id)
        },
        kind,
      )
    })
  }
}

async function asUser<T>(identity: Identity, task: (userId: string) => Promise<T>): Promise<T> {
  if (identity.kind !== 'user') throw refuse('forbidden', 'an API client has no invitations: sign in as a user')
  return task(identity.userId)
}

/** Creates an invitation and returns its id. The inviter of an API client's invitation is the owner of the account. */
async function invite(tx: Tx, { accountId, userId }: Caller, { email, role }: Static<typeof Create>): Promise<string> {
  if (!isEmailAddress(email))
    throw refuse(
      'unprocessable_entity',
      fieldFault('email', 'malformed', 'email must be an address such as ada@example.com'),
    )
  const current = await tx
    .selectFrom('collaborations')
    .select(['id', 'status'])
    .where('account_id', '=', accountId)
    .where('status', 'in', ['pending', 'accepted'])
    .where(hasAddress('collaborations.email', email))
    .executeTakeFirst()
  if (current !== undefined)
    throw refuse('resource_conflict', `${email} has the ${current.status} collaboration ${current.id} already`)
  const user = await tx
    .selectFrom('users')
    .select('id')
    .where(hasAddress('users.email_address', email))
    .executeTakeFirst()
  if (user !== undefined && (await accountsOf(tx, user.id)).includes(accountId))
    throw refuse('resource_conflict', `${email} has access to the account already`)
  if ((await countInvitations(tx, accountId)) >= INVITATION_LIMIT) {
    throw refuse(
      'account_limit_reached',
      `the account has ${String(INVITATION_LIMIT)} invitations that are pending or younger than an hour: cancel old ones, or wait`,
    )
  }
  await refuseBeyondLimit(tx, accountId, 'collaborations_limit')
  const { owner_id: owner } = await tx
    .selectFrom('accounts')
    .select('owner_id')
    .where('id', '=', accountId)
    .executeTakeFirstOrThrow()
  await forgetFinished(tx, accountId)
  const id = await nextId(tx, 'col')
  await tx
    .insertInto('collaborations')
    .values({
      id,
      account_id: accountId,
      user_id: null,
      inviter_id: userId ?? owner,
      email,
      role,
      status: 'pending',
      started_at: null,
      finished_at: null,
    })
    .execute()
  return id
}

/** The invitations of an account that are pending or younger than an hour. */
async function countInvitations(tx: Tx, accountId: string): Promise<number> {
  const { count } = await tx
    .selectFrom('collaborations')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('account_id', '=', accountId)
    .where((where) => where.or([where('status', '=', 'pending'), sql<boolean>`created_at > now() - interval '1 hour'`]))
    .executeTakeFirstOrThrow()
  return count
}

/** Moves one of `collaborations` to its next state. `userId`: the user who accepts. */
async function move(
  tx: Tx,
  collaborations: ReturnType<typeof ofAccount>,
  id: string,
  trigger: CollaborationTrigger,
  userId?: string,
): Promise<void> {
  const row = await collaborations.where('collaborations.id', '=', id).forUpdate('collaborations').executeTakeFirst()
  if (row === undefined) throw noSuch('collaboration', id)
  const status = nextStatus(row.status, trigger)
  if (status === undefined) throw refuse('resource_conflict', `the collaboration ${id} is ${row.status}`)
  const now = new Date()
  const resends = trigger === 'resend' ? addResend(row.resends, now) : row.resends
  if (resends === undefined) {
    const text = `${id} can be sent again ${String(RESEND_LIMIT)} times in an hour: try again later`
    throw new Refusal('too_many_requests', [text], { retrySeconds: resendWaitSeconds(row.resends, now) })
  }
  await tx
    .updateTable('collaborations')
    .set({ status, resends, ...columnsOf(status, userId) })
    .where('id', '=', id)
    .execute()
  return undefined
}

/** The columns that change with the new state. `invited_at: null` has the invitation sent again. */
function columnsOf(status: CollaborationStatus, userId: string | undefined) {
  if (status === 'pending') return { invited_at: null }
  return status === 'accepted' ? { user_id: userId, started_at: new Date() } : { finished_at: new Date() }
}

/** True for the same address, in any case. */
function hasAddress(column: 'collaborations.email' | 'users.email_address', address: string) {
  return sql<boolean>`lower(${sql.ref(column)}) = lower(${address})`
}

function ofAccount(database: Reader, accountId: string) {
  return selectCollaborations(database).where('collaborations.account_id', '=', accountId)
}

/** The collaborations of a user, and the invitations to the user's address, if it is verified. */
function ofUser(database: Reader, userId: string) {
  return selectCollaborations(database).where((where) =>
    where.or([
      where('collaborations.user_id', '=', userId),
      where.and([
        where('collaborations.user_id', 'is', null),
        sql<boolean>`lower(collaborations.email) = (select lower(email_address) from users where id = ${userId} and email_verified)`,
      ]),
    ]),
  )
}

function selectCollaborations(database: Reader) {
  return database
    .selectFrom('collaborations')
    .innerJoin('accounts', 'accounts.id', 'collaborations.account_id')
    .selectAll('collaborations')
    .select((eb) => [
      'accounts.name as account_name',
      'accounts.status as account_status',
      jsonObjectFrom(
        eb
          .selectFrom('users')
          .select(['users.id', 'users.name', 'users.email_address', 'users.totp_secret'])
          .whereRef('users.id', '=', 'collaborations.user_id'),
      ).as('user'),
      jsonObjectFrom(
        eb
          .selectFrom('users')
          .select(['users.id', 'users.name', 'users.email_address', 'users.totp_secret'])
          .whereRef('users.id', '=', 'collaborations.inviter_id'),
      ).as('inviter'),
    ])
}

type Row = InferResult<ReturnType<typeof selectCollaborations>>[number]

function represent(site: Site, side: Side, row: Row): Collaboration {
  return {
    ...identity(site, 'collaboration', PATHS[side], row.id),
    email: row.email,
    role: row.role,
    role_label: ROLES[row.role],
    status: row.status,
    created_at: formatTime(row.created_at),
    started_at: formatOptionalTime(row.started_at),
    finished_at: formatOptionalTime(row.finished_at),
    user: row.user === null ? null : nestedUser(site, row.user),
    account: nestedAccount(site, { id: row.account_id, name: row.account_name, status: row.account_status }),
    inviter: row.inviter === null ? null : nestedUser(site, row.inviter),
  }
}
