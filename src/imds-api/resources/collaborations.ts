/**
 * Collaborations. A collaboration gives a user access to another user's account. The account invites an e-mail address,
 * and the user with this verified address accepts. changes/collaborations.ts has the states. An invitation shows no
 * user before it is accepted, so that an account cannot find out whether a user has the address.
 */
import type { FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import Type, { type TObject } from 'typebox'
import { tokenRequester, type Caller } from '../auth/caller.ts'
import {
  acceptInvitation,
  type CollaborationTransition,
  collaborationCanBecome,
  isOfUser,
  leaveAccount,
  nextStatus,
  PARTIES,
  rejectInvitation,
  removeCollaboration,
} from '../changes/collaborations.ts'
import { invite, resendInvitation } from '../changes/invitations.ts'
import type { Parties, PartyUser } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import { COLLABORATION_STATES, ROLES, type CollaborationStatus, type Role } from '../model/collaborations.ts'
import { refuse } from '../model/refusal.ts'
import { rateLimitHeaders } from '../../limits/rate-limit-headers.ts'
import { Field, Form, type Link, type Representation, type Site } from './kit/forms.ts'
import { conditionOf } from './kit/conditions.ts'
import { Members, type MemberRoute } from './kit/members.ts'
import { addWait } from './kit/waiting.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { nullable, NullableTime, enumOf, Time } from './kit/schemas.ts'

const FIELDS = {
  email: Type.String({ format: 'email' }),
  role: enumOf(Object.keys(ROLES)),
  role_label: new Field(Type.String(), 'role', (role: Role) => ROLES[role]),
  status: enumOf(COLLABORATION_STATES),
  created_at: Time,
  started_at: NullableTime,
  finished_at: NullableTime,
  user: new Field(
    Type.Union([NESTED.user.schema, Type.Null({ description: 'The invitation is not accepted.' })]),
    'parties',
    ({ user }: Parties, site) => partyOf(site, user),
    partyLink(NESTED.user, 'users.id = collaborations.user_id'),
  ),
  account: new Field(
    NESTED.account.schema,
    'parties',
    ({ account }: Parties, site) => NESTED.account.show(site, account),
    partyLink(NESTED.account, 'accounts.id = collaborations.account_id'),
  ),
  inviter: new Field(
    nullable(NESTED.user.schema),
    'parties',
    ({ inviter }: Parties, site) => partyOf(site, inviter),
    partyLink(NESTED.user, 'users.id = collaborations.inviter_id'),
  ),
}
const OPTIONS = { title: 'Collaboration', extra: { parties: sql`coalesce(collaborations.parties, ${PARTIES})` } }
/** The full form of each side, which is the collected form too. */
const ACCOUNT_SIDE = new Form('collaboration', FIELDS, OPTIONS)
const USER_SIDE = new Form('userCollaboration', FIELDS, OPTIONS)
type Answered = Representation & { readonly status: CollaborationStatus; readonly account: { readonly id: string } }

const Create = Type.Object(
  { email: Type.String(), role: Type.Enum(Object.keys(ROLES) as Role[]) },
  { title: 'NewCollaboration', examples: [{ email: 'grace@example.com', role: 'admin' }] },
)

export function addCollaborationRoutes(parts: ResourceParts): void {
  const collaborations = new Members(parts, { form: ACCOUNT_SIDE })

  collaborations.list({
    summary: 'List the collaborations of the account',
    description: 'Invitations and finished ones too.',
  })
  collaborations.get('It names no user before the invitation is accepted.')
  addWait(collaborations, parts, collaborationCanBecome)
  collaborations.create(
    {
      summary: 'Invite somebody to the account',
      description: 'Refused (409) for an address that is invited or has access already.',
      body: Create,
      status: 201,
    },
    ({ tx, request, accountId, body }) => {
      const { holder } = request.caller
      return invite(tx, accountId, holder.kind === 'user' ? holder.userId : null, body)
    },
  )
  collaborations.action(
    'resend',
    {
      summary: 'Send the invitation again',
      description: 'Refused (409) unless it is pending, and (429) when it was sent too often.',
    },
    async ({ tx, accountId, id, reply }) => {
      void reply.headers(rateLimitHeaders(await resendInvitation(tx, accountId, id)))
    },
  )
  collaborations.end(
    {
      summary: 'Cancel an invitation, or end an accepted collaboration',
      description: 'The user loses the access at once.',
    },
    ({ tx, accountId, id }) => removeCollaboration(tx, accountId, id),
  )
}

/** Adds the user's side. API clients are refused, even for ids that do not exist. A user need not name an account. */
export function addUserCollaborationRoutes(parts: ResourceParts): void {
  const rows = ({ caller }: FastifyRequest) => ({ where: isOfUser(userOf(caller)) })
  const collaborations = new Members(parts, { form: USER_SIDE, rows })
  const { path, load } = collaborations

  collaborations.list({
    summary: 'List your collaborations and invitations',
    description: 'Those of the user who has signed in. API clients get 403.',
  })
  collaborations.get('One of the user who has signed in. API clients get 403.', {
    summary: 'Get one of your collaborations',
  })
  addAnswer('POST', `${path}/accept`, 'accept', acceptInvitation, {
    operationId: 'acceptCollaboration',
    summary: 'Accept an invitation',
    description: 'Gives access to the account.',
  })
  addAnswer('POST', `${path}/reject`, 'reject', rejectInvitation, {
    operationId: 'rejectCollaboration',
    summary: 'Reject an invitation',
    description: 'The account sees that it is rejected.',
  })
  addAnswer('DELETE', path, 'end', leaveAccount, {
    operationId: 'endUserCollaboration',
    summary: 'End an accepted collaboration',
    description: 'Takes the access away at once.',
  })

  function addAnswer(
    method: 'POST' | 'DELETE',
    url: string,
    transition: CollaborationTransition,
    change: (tx: Tx, userId: string, id: string) => Promise<void>,
    about: MemberRoute<TObject>,
  ): void {
    collaborations.route(method, url, transition, about, ({ request, reply, id, rule }) => {
      const userId = userOf(request.caller)
      return parts.accounts.commitAsOutsider(
        tokenRequester(request, conditionOf(collaborations, request, reply)),
        async (tx) => {
          const { account, status } = (await load(tx, request, id)) as Answered
          nextStatus({ id, status }, transition)
          return account.id
        },
        async (tx) => {
          await change(tx, userId, id)
          return load(tx, request, id)
        },
        rule,
      )
    })
  }
}

function userOf({ holder }: Caller): string {
  if (holder.kind !== 'user') throw refuse('forbidden', 'an API client has no invitations: sign in as a user')
  return holder.userId
}

/** A finished collaboration keeps its parties as they were. */
function partyLink(form: Form, isParty: string): Link {
  return { form, which: sql`where ${sql.raw(isParty)} and collaborations.finished_at is null` }
}

function partyOf(site: Site, user: PartyUser | null): Representation | null {
  return user === null ? null : NESTED.user.show(site, { ...user, '2fa': user.two_factor })
}
