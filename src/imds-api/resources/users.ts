/** Users of the accounts of the caller. An API client acts for its account, so its `/user` is the account's owner. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { sql, type Insertable, type InferResult } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import { tokenRequester } from '../auth/requester.ts'
import type { TokenHolder } from '../auth/tokens.ts'
import { usersOf } from '../changes/members.ts'
import type { Tables } from '../database/tables.ts'
import type { Reader } from '../database/transaction.ts'
import { ENDED_STATES } from '../model/account-states.ts'
import { parseSshKey } from '../model/ssh-key.ts'
import { formatTime } from '../model/time.ts'
import { fieldFault, noSuch, refuse, Refusal } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, byText, equals } from './lists.ts'
import { addMember, idOf } from './members.ts'
import { alwaysNull, NESTED, type Site, Time } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

const Fields = {
  ...NESTED.user.schema.properties,
  email_verified: Type.Boolean(),
  ssh_key: Type.String({ description: 'Empty: the user has none.' }),
  messaging_pref: Type.Boolean(),
  created_at: Time,
  accounts: Type.Array(NESTED.account.schema),
}
const Collected = Type.Object(
  { ...Fields, default_account: alwaysNull(NESTED.account.schema) },
  { title: 'CollectedUser' },
)
const User = Type.Object(
  { ...Fields, default_account: Type.Union([NESTED.account.schema, Type.Null()]) },
  { title: 'User' },
)

const Update = Type.Object(
  {
    name: Type.Optional(Type.String({ minLength: 1, maxLength: 255, format: 'line' })),
    ssh_key: Type.Optional(
      Type.Union([Type.String({ description: 'One line of authorized_keys. Empty: none.' }), Type.Null()]),
    ),
    messaging_pref: Type.Optional(Type.Boolean()),
    email_address: Type.Optional(Type.String({ description: 'As it is: it cannot be changed here.' })),
    password: Type.Optional(Type.String({ description: 'Refused: it cannot be changed here.' })),
  },
  { title: 'UserChange', examples: [{ name: 'Ada Lovelace', messaging_pref: true }] },
)

const CHANGE_RULE =
  'Only the user can change the profile. API clients may resend current values. A new key goes into later servers.'

/** Adds the routes. */
export function addUserRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  addList(server, RESOURCES.user, {
    summary: 'List the users of the account',
    description: 'The owners and collaborators of the accounts that the caller may read.',
    form: Collected,
    order: [byText('users.id')],
    filters: { name: equals('users.name') },
    select: ({ accountIds }) => selectUsers(db, accountIds),
    represent: (rows) => rows.map((row) => ({ ...fullUser(site, row), default_account: null })),
  })

  addMember(server, db, RESOURCES.user, {
    description: 'The caller, or a user with whom the caller shares an account.',
    form: User,
    load: (database, { accountIds, tokenHolder }, id) =>
      selfOf(database, tokenHolder).then((self) => load(database, accountIds, self, id)),
  })

  addMember(server, db, RESOURCES.user, {
    path: '/user',
    operationId: 'getCurrentUser',
    summary: 'Get the user of the token',
    description: 'The user who has signed in; for an API client, the owner of its account.',
    form: User,
    load: (database, { accountIds, tokenHolder }) =>
      selfOf(database, tokenHolder).then((id) => load(database, accountIds, id, id)),
  })

  for (const [url, about] of [
    [
      '/users/:id',
      { operationId: 'updateUser', summary: 'Change a user', tags: RESOURCES.user.tags, params: RESOURCES.user.params },
    ],
    ['/user', { operationId: 'updateCurrentUser', summary: 'Change the user of the token', tags: RESOURCES.user.tags }],
  ] as const)
    server.put(
      url,
      { schema: { ...about, description: CHANGE_RULE, body: Update, response: { 200: User } } },
      async (request, reply) => await change(request, reply),
    )

  async function load(
    database: Reader,
    accountIds: readonly string[],
    self: string,
    id: string,
  ): Promise<Static<typeof User>> {
    const row = await selectUsers(database, accountIds, self)
      .where('users.id', '=', id)
      .executeTakeFirstOrThrow(() => noSuch('user', id))
    return fullUser(site, row)
  }

  /** Changes the profile that the path names; else that of the token. */
  async function change(
    request: FastifyRequest<{ Body: Static<typeof Update> }>,
    reply: FastifyReply,
  ): Promise<Static<typeof User>> {
    const { accountIds, tokenHolder, body } = request
    return accounts.commitProfile(tokenRequester(request), async (tx) => {
      const self = await selfOf(tx, tokenHolder)
      const id = idOf(request) || self
      const row = await selectUsers(tx, accountIds, self)
        .where('users.id', '=', id)
        .executeTakeFirstOrThrow(() => noSuch('user', id))
      const forbidden = refuse('forbidden', `only ${id} can change this profile, after signing in`)
      if (tokenHolder.kind === 'user' && tokenHolder.userId !== id) throw forbidden
      const values = changesOf(row, body)
      if (Object.keys(values).length === 0) {
        reply.changedNothing = true
        return fullUser(site, row)
      }
      if (tokenHolder.kind === 'client') throw forbidden
      await tx.updateTable('users').set(values).where('id', '=', id).execute()
      return load(tx, accountIds, self, id)
    })
  }
}

async function selfOf(database: Reader, tokenHolder: TokenHolder): Promise<string> {
  return tokenHolder.kind === 'user' ? tokenHolder.userId : ownerOf(database, tokenHolder.accountId)
}

/** The columns whose values a request changes. Clients also send fields with their present values. */
function changesOf(
  row: Row,
  { name = row.name, ssh_key, messaging_pref = row.messaging_pref, email_address, password }: Static<typeof Update>,
): Partial<Insertable<Tables['users']>> {
  const key = ssh_key === undefined ? ({ ok: true, value: row.ssh_key ?? '' } as const) : parseSshKey(ssh_key ?? '')
  const faults = [
    ...(key.ok ? [] : key.faults.map((fault) => fieldFault('ssh_key', 'malformed', `ssh_key ${fault}`))),
    ...(email_address === undefined || email_address === row.email_address
      ? []
      : [
          fieldFault(
            'email_address',
            'unchangeable',
            'email_address cannot be changed here: it comes from the region file',
          ),
        ]),
    ...(password === undefined
      ? []
      : [fieldFault('password', 'unchangeable', 'password cannot be changed here: it comes from the region file')]),
  ]
  if (faults.length > 0 || !key.ok) throw new Refusal('unprocessable_entity', faults)
  const values = { name, ssh_key: key.value === '' ? null : key.value, messaging_pref }
  return Object.fromEntries(
    Object.entries(values).filter(([column, value]) => value !== row[column as keyof typeof values]),
  )
}

/**
 * The users of these accounts, and `self`, who may have no account. Of the accounts of each user, it shows only those
 * among `accountIds`: the caller must not see the others.
 */
function selectUsers(database: Reader, accountIds: readonly string[], self?: string) {
  return database
    .selectFrom('users')
    .select([
      'users.id',
      'users.name',
      'users.email_address',
      'users.email_verified',
      'users.ssh_key',
      'users.messaging_pref',
      'users.totp_secret',
      'users.created_at',
    ])
    .select((eb) =>
      jsonArrayFrom(
        eb
          .selectFrom('accounts')
          .select(['accounts.id', 'accounts.name', 'accounts.status', 'accounts.owner_id'])
          .where((one) => one('accounts.id', '=', one.fn.any(one.val([...accountIds]))))
          .where(isMemberOfAccount())
          .orderBy('accounts.id'),
      ).as('accounts'),
    )
    .where(sql<boolean>`users.id in (select ${self ?? null}::text union ${usersOf(sql`${[...accountIds]}::text[]`)})`)
}

/** True if the user of the outer query owns the account, or has access by an accepted collaboration. */
function isMemberOfAccount() {
  return sql<boolean>`(accounts.owner_id = users.id or exists (
    select from collaborations
    where collaborations.account_id = accounts.id
      and collaborations.user_id = users.id
      and collaborations.status = 'accepted'
  ))`
}

async function ownerOf(database: Reader, accountId: string): Promise<string> {
  return (
    await database.selectFrom('accounts').select('owner_id').where('id', '=', accountId).executeTakeFirstOrThrow()
  ).owner_id
}

type Row = InferResult<ReturnType<typeof selectUsers>>[number]

function fullUser(site: Site, row: Row): Static<typeof User> {
  const owned = row.accounts.filter(({ owner_id }) => owner_id === row.id)
  const own = owned.find(({ status }) => !ENDED_STATES.includes(status)) ?? owned[0]
  return {
    ...NESTED.user.show(site, row),
    email_verified: row.email_verified,
    ssh_key: row.ssh_key ?? '',
    messaging_pref: row.messaging_pref,
    created_at: formatTime(row.created_at),
    accounts: row.accounts.map((account) => NESTED.account.show(site, account)),
    default_account: own === undefined ? null : NESTED.account.show(site, own),
  }
}
