/** Users of the accounts of the caller. An API client acts for its account, so its `/user` is the account's owner. */
import type { FastifyRequest } from 'fastify'
import { sql, type Insertable } from 'kysely'
import Type, { type Static } from 'typebox'
import { tokenRequester } from '../auth/caller.ts'
import type { TokenHolder } from '../auth/tokens.ts'
import { usersOf } from '../changes/members.ts'
import type { Tables } from '../database/tables.ts'
import type { Db } from '../database/transaction.ts'
import { ENDED_STATES } from '../model/account-states.ts'
import { fieldFault, refuse, Refusal } from '../model/refusal.ts'
import { parseSshKeys } from '../model/ssh-key.ts'
import { alwaysNull, Field, formsOf, linkedAll, optionalLink, type Representation, type RowsOf } from './kit/forms.ts'
import { byText, FEW_ROWS_AT_ONCE } from './kit/lists.ts'
import { conditionOf } from './kit/conditions.ts'
import { Members } from './kit/members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { nullable, Time } from './kit/schemas.ts'

const FIELDS = {
  ...NESTED.user.fields,
  email_verified: Type.Boolean(),
  ssh_key: new Field(
    Type.String({ description: 'Keys, one per line. Empty: the user has none.' }),
    'ssh_key',
    (key: string | null) => key ?? '',
  ),
  messaging_pref: Type.Boolean(),
  created_at: Time,
  /** Those that the caller may see. */
  accounts: linkedAll(
    NESTED.account,
    sql`where accounts.id = any(visible.account_ids) and (accounts.owner_id = users.id or exists (
      select from collaborations
      where collaborations.account_id = accounts.id
        and collaborations.user_id = users.id
        and collaborations.status = 'accepted'
    ))`,
  ),
}
const FORMS = formsOf(
  'user',
  { ...FIELDS, default_account: alwaysNull(NESTED.account.schema) },
  {
    default_account: optionalLink(
      NESTED.account,
      sql`accounts.id = (
        select id from accounts where owner_id = users.id and id = any(visible.account_ids)
        order by status = any(${sql.lit(`{${ENDED_STATES.join()}}`)}), id limit 1)`,
    ),
  },
)
/** What a request may change, and some clients send as it is. */
type Profile = Representation & {
  readonly name: string
  readonly email_address: string
  readonly ssh_key: string
  readonly messaging_pref: boolean
}

const Update = Type.Partial(
  Type.Object({
    name: Type.String({ minLength: 1, maxLength: 255, format: 'line' }),
    ssh_key: nullable(Type.String({ description: 'Lines of authorized_keys, a key each. Empty: none.' })),
    messaging_pref: Type.Boolean(),
    email_address: Type.String({ description: 'As it is: it cannot be changed here.' }),
    password: Type.String({ description: 'Refused: it cannot be changed here.' }),
  }),
  { title: 'UserChange', examples: [{ name: 'Ada Lovelace', messaging_pref: true }] },
)

export function addUserRoutes(parts: ResourceParts): void {
  const { site } = parts
  const load: Members['load'] = async (db, request, id) => {
    const self = await selfOf(db, request.caller.holder)
    return FORMS.form.load(db, site, id || self, usersSeenBy(request.accounts.ids, self))
  }
  const rows = ({ accounts }: FastifyRequest) => usersSeenBy(accounts.ids)
  const users = new Members(parts, { ...FORMS, rows, load })
  const user = new Members(parts, {
    ...FORMS,
    as: { path: 'user', name: 'CurrentUser', noun: 'the user of the token' },
    load,
  })

  users.list({
    summary: 'List the users of the account',
    description: 'The owners and collaborators of the accounts that the caller may read.',
    order: [byText('users.id')],
    rowsAtOnce: FEW_ROWS_AT_ONCE,
  })
  users.get('The caller, or a user with whom the caller shares an account.')
  user.get('The user who has signed in; for an API client, the owner of its account.')
  for (const members of [users, user])
    members.route(
      'PUT',
      members.path,
      'Change',
      {
        description:
          'Only the user can change the profile. API clients may resend current values. New keys go into later servers.',
        body: Update,
      },
      async ({ request, reply, id: ofPath, body }) => {
        const { holder } = request.caller
        const requester = tokenRequester(request, conditionOf(members, request, reply))
        return parts.accounts.commitProfile(requester, async (tx) => {
          const profile = (await load(tx, request, ofPath)) as Profile
          const { id } = profile
          const forbidden = refuse('forbidden', `only ${id} can change this profile, after signing in`)
          if (holder.kind === 'user' && holder.userId !== id) throw forbidden
          const values = changesOf(profile, body)
          if (Object.keys(values).length === 0) {
            reply.changedNothing = true
            return profile
          }
          if (holder.kind === 'client') throw forbidden
          await tx.updateTable('users').set(values).where('id', '=', id).execute()
          return load(tx, request, id)
        })
      },
    )
}

/** The user of a token; for an API client, the owner of its account. */
async function selfOf(db: Db, holder: TokenHolder): Promise<string> {
  if (holder.kind === 'user') return holder.userId
  const account = db.selectFrom('accounts').select('owner_id').where('id', '=', holder.accountId)
  return (await account.executeTakeFirstOrThrow()).owner_id
}

/** The columns whose values a request changes. Clients also send fields with their present values. */
function changesOf(
  profile: Profile,
  { ssh_key = profile.ssh_key, email_address = profile.email_address, password, ...body }: Static<typeof Update>,
): Partial<Insertable<Tables['users']>> {
  const { name = profile.name, messaging_pref = profile.messaging_pref } = body
  const keys = ssh_key === profile.ssh_key ? ({ ok: true, value: ssh_key } as const) : parseSshKeys(ssh_key ?? '')
  const unchangeable = [
    ...(email_address === profile.email_address ? [] : ['email_address']),
    ...(password === undefined ? [] : ['password']),
  ]
  const faults = [
    ...(keys.ok ? [] : keys.faults.map((fault) => fieldFault('ssh_key', 'malformed', `ssh_key ${fault}`))),
    ...unchangeable.map((field) =>
      fieldFault(field, 'unchangeable', `${field} cannot be changed here: it comes from the region file`),
    ),
  ]
  if (faults.length > 0 || !keys.ok) throw new Refusal('unprocessable_entity', faults)
  const values = { name, ssh_key: keys.value, messaging_pref }
  const changed = Object.entries(values).filter(([field, value]) => value !== profile[field as keyof typeof values])
  return Object.fromEntries(changed.map(([field, value]) => [field, value === '' ? null : value]))
}

/** The users of these accounts, and `self`, who may have no account. */
function usersSeenBy(accountIds: readonly string[], self?: string): RowsOf {
  const ids = sql<readonly string[]>`${[...accountIds]}::text[]`
  return {
    join: sql`cross join (select ${ids} as account_ids) as visible`,
    where: sql`users.id in (select ${self ?? null}::text union ${usersOf(ids)})`,
  }
}
