/**
 * Collaborations. A collaboration gives a user access to another user's account. The account invites an e-mail address,
 * and the user with this verified address accepts. changes/collaborations.ts has the states. An invitation shows no
 * user before it is accepted, so that an account cannot find out whether a user has the address.
 */
import type { FastifySchema } from 'fastify'
import { sql, type InferResult, type RawBuilder } from 'kysely'
import Type, { type Static } from 'typebox'
import { tokenRequester } from '../auth/requester.ts'
import type { TokenHolder } from '../auth/tokens.ts'
import {
  acceptInvitation,
  type CollaborationEvent,
  collaborationCanBecome,
  isOfAccount,
  isOfUser,
  leaveAccount,
  nextStatus,
  PARTIES,
  rejectInvitation,
  removeCollaboration,
} from '../changes/collaborations.ts'
import { invite, resendInvitation } from '../changes/invitations.ts'
import type { Parties, PartyUser } from '../database/tables.ts'
import type { Reader, Tx } from '../database/transaction.ts'
import type { ChangeRequest } from '../model/account-states.ts'
import { COLLABORATION_STATES, ROLES, type Role } from '../model/collaborations.ts'
import { rateLimitHeaders, type Quota } from '../../limits/rate-limit-headers.ts'
import { noSuch, refuse } from '../model/refusal.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, equals } from './lists.ts'
import { addMember, Members } from './members.ts'
import { NESTED, NullableTime, oneOf, reference, representation, type Site, Time } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'
import { addWait } from './waiting.ts'

/** The full form, which is the collected form too. */
const Collaboration = representation('Collaboration', RESOURCES.collaboration, {
  email: Type.String({ format: 'email' }),
  role: oneOf(Object.keys(ROLES) as Role[]),
  role_label: Type.String(),
  status: oneOf(COLLABORATION_STATES),
  created_at: Time,
  started_at: NullableTime,
  finished_at: NullableTime,
  user: Type.Union([NESTED.user.schema, Type.Null({ description: 'The invitation is not accepted.' })]),
  account: NESTED.account.schema,
  inviter: Type.Union([NESTED.user.schema, Type.Null()]),
})
type Collaboration = Static<typeof Collaboration>
const Create = Type.Object(
  { email: Type.String(), role: Type.Enum(Object.keys(ROLES) as Role[]) },
  { title: 'NewCollaboration', examples: [{ email: 'grace@example.com', role: 'admin' }] },
)

/** The lists of both sides. */
const LIST = {
  form: Collaboration,
  filters: { status: equals('collaborations.status', { values: COLLABORATION_STATES }) },
}
/** What the resource is for each side, the account and the user. */
const SIDES = { account: RESOURCES.collaboration, user: RESOURCES.userCollaboration } as const
type Side = keyof typeof SIDES

/** Adds the account's side. */
export function addCollaborationRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, accounts, site } = parts
  const load = async (database: Reader, accountId: string, id: string) => {
    const row = await selectCollaborations(database, isOfAccount(accountId))
      .where('collaborations.id', '=', id)
      .executeTakeFirstOrThrow(() => noSuch('collaboration', id))
    return fullCollaboration(site, 'account', row)
  }
  const collaborations = new Members(server, parts, SIDES.account, Collaboration, load)

  addList(server, SIDES.account, {
    ...LIST,
    summary: 'List the collaborations of the account',
    description: 'Invitations and finished ones too.',
    select: ({ caller }) => selectCollaborations(db, isOfAccount(caller.accountId)),
    represent: (rows) => rows.map((row) => fullCollaboration(site, 'account', row)),
  })
  collaborations.get('It names no user before the invitation is accepted.')
  addWait(server, parts, SIDES.account, {
    ...{ form: Collaboration, states: COLLABORATION_STATES, canBecome: collaborationCanBecome, load },
  })
  collaborations.create(
    {
      summary: 'Invite somebody to the account',
      description: 'Refused (409) for an address that is invited or has access already.',
      body: Create,
      status: 201,
    },
    (tx, { caller, accountId, body }) => invite(tx, accountId, caller.userId ?? null, body),
  )
  server.post(
    '/collaborations/:id/resend',
    {
      schema: {
        operationId: 'resendCollaboration',
        'x-refusals': ['too_many_requests'],
        summary: 'Send the invitation again',
        description: 'Refused (409) unless it is pending, and (429) when it was sent too often.',
        tags: SIDES.account.tags,
        params: SIDES.account.params,
        response: { 200: Collaboration },
      },
    },
    async ({ caller, caller: { accountId }, params: { id } }, reply) => {
      let quota!: Quota
      const member = await accounts.commit(caller, async (tx) => {
        quota = await resendInvitation(tx, accountId, id)
        return load(tx, accountId, id)
      })
      return reply.headers(rateLimitHeaders(quota)).send(member)
    },
  )
  collaborations.end(
    {
      summary: 'Cancel an invitation, or end an accepted collaboration',
      description: 'The user loses the access at once.',
      change: 'DELETE /collaborations/ID',
    },
    (tx, { accountId, id }) => removeCollaboration(tx, accountId, id),
  )
}

/** Adds the user's side. API clients are refused, even for ids that do not exist. A user need not name an account. */
export function addUserCollaborationRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  addList(server, SIDES.user, {
    ...LIST,
    summary: 'List your collaborations and invitations',
    description: 'Those of the user who has signed in. API clients get 403.',
    select: ({ tokenHolder }) => selectCollaborations(db, isOfUser(userOf(tokenHolder))),
    represent: (rows) => rows.map((row) => fullCollaboration(site, 'user', row)),
  })
  addMember(server, db, SIDES.user, {
    summary: 'Get one of your collaborations',
    description: 'One of the user who has signed in. API clients get 403.',
    form: Collaboration,
    load: async (database, { tokenHolder }, id) => load(database, userOf(tokenHolder), id),
  })
  addAnswer('POST', '/accept', 'accept', acceptInvitation, 'POST /user/collaborations/ID/accept', {
    operationId: 'acceptCollaboration',
    summary: 'Accept an invitation',
    description: 'Gives access to the account.',
  })
  addAnswer('POST', '/reject', 'reject', rejectInvitation, 'POST /user/collaborations/ID/reject', {
    operationId: 'rejectCollaboration',
    summary: 'Reject an invitation',
    description: 'The account sees that it is rejected.',
  })
  addAnswer('DELETE', '', 'leave', leaveAccount, 'DELETE /user/collaborations/ID', {
    operationId: 'endUserCollaboration',
    summary: 'End an accepted collaboration',
    description: 'Takes the access away at once.',
  })

  async function load(database: Reader, userId: string, id: string): Promise<Collaboration> {
    const row = await selectCollaborations(database, isOfUser(userId))
      .where('collaborations.id', '=', id)
      .executeTakeFirstOrThrow(() => noSuch('collaboration', id))
    return fullCollaboration(site, 'user', row)
  }

  function addAnswer(
    method: 'POST' | 'DELETE',
    verb: string,
    event: CollaborationEvent,
    change: (tx: Tx, userId: string, id: string) => Promise<void>,
    kind: ChangeRequest,
    about: Pick<FastifySchema, 'operationId' | 'summary' | 'description'>,
  ): void {
    const { path, tags, params } = SIDES.user
    server.route({
      method,
      url: `/${path}/:id${verb}`,
      schema: { ...about, tags, params, response: { 200: Collaboration } },
      handler: async (request) => {
        const { id } = request.params
        const userId = userOf(request.tokenHolder)
        return accounts.commitAsOutsider(
          tokenRequester(request),
          async (tx) => {
            const found = await selectCollaborations(tx, isOfUser(userId))
              .where('collaborations.id', '=', id)
              .executeTakeFirstOrThrow(() => noSuch('collaboration', id))
            nextStatus(found, event)
            return found.account_id
          },
          async (tx) => {
            await change(tx, userId, id)
            return load(tx, userId, id)
          },
          kind,
        )
      },
    })
  }
}

function userOf(tokenHolder: TokenHolder): string {
  if (tokenHolder.kind !== 'user') throw refuse('forbidden', 'an API client has no invitations: sign in as a user')
  return tokenHolder.userId
}

function selectCollaborations(database: Reader, isOwn: RawBuilder<boolean>) {
  return database
    .selectFrom('collaborations')
    .selectAll('collaborations')
    .select(sql<Parties>`coalesce(parties, ${PARTIES})`.as('parties'))
    .where(isOwn)
}

type Row = InferResult<ReturnType<typeof selectCollaborations>>[number]

function fullCollaboration(
  site: Site,
  side: Side,
  { parties: { account, user, inviter }, ...row }: Row,
): Collaboration {
  return {
    ...reference(site, SIDES[side], row.id),
    email: row.email,
    role: row.role,
    role_label: ROLES[row.role],
    status: row.status,
    created_at: formatTime(row.created_at),
    started_at: formatOptionalTime(row.started_at),
    finished_at: formatOptionalTime(row.finished_at),
    user: partyOf(site, user),
    account: NESTED.account.show(site, account),
    inviter: partyOf(site, inviter),
  }
}

function partyOf(site: Site, user: PartyUser | null): Static<typeof NESTED.user.schema> | null {
  return user === null ? null : NESTED.user.show(site, { ...user, totp_secret: user.two_factor ? '' : null })
}
