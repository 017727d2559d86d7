/** Users of the accounts of the caller. An API client acts for its account, so its `/user` is the account's owner. */
import { sql, type InferResult } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import type { Reader } from '../database/transaction.ts'
import { formatTime } from '../model/time.ts'
import { notFound } from '../refusal.ts'
import type { ApiServer } from '../server.ts'
import { listOf, NestedAccount, nestedAccount, NestedUser, nestedUser, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Fields = {
  ...NestedUser.properties, email_verified: Type.Boolean(), ssh_key: Type.String({ description: 'Empty: the user has none.' }), messaging_pref: Type.Boolean(), created_at: Type.String(),
  accounts: Type.Array(NestedAccount),
}
const Collected = Type.Object({ ...Fields, default_account: Type.Null() }, { title: 'CollectedUser' })
const User = Type.Object({ ...Fields, default_account: Type.Union([NestedAccount, Type.Null()]) }, { title: 'User' })

const TAGS = ['Users']

/** Adds the routes. */
export function addUserRoutes(server: ApiServer, { tables, site }: ResourceParts): void {
  server.get('/users', { schema: { summary: 'List the users of the account', tags: TAGS, response: { 200: listOf(Collected) } } }, async ({ accountIds }) =>
    (await selectUsers(tables, accountIds).orderBy('users.id').execute()).map((row) => ({ ...represent(site, row), default_account: null })))

  server.get('/users/:id', { schema: { summary: 'Get a user', tags: TAGS, params: Type.Object({ id: Type.String() }), response: { 200: User } } }, async ({ accountIds, params: { id } }, reply) => {
    const row = await selectUsers(tables, accountIds).where('users.id', '=', id).executeTakeFirst()
    return reply.answer(200, row === undefined ? notFound(`the user ${id}`) : represent(site, row))
  })

  server.get('/user', { schema: { summary: 'Get the user of the token', tags: TAGS, response: { 200: User } } }, async ({ accountIds, identity }, reply) => {
    const id = identity.kind === 'user' ? identity.userId : await ownerOf(tables, identity.accountId)
    const row = await selectUsers(tables, accountIds, id).where('users.id', '=', id).executeTakeFirst()
    return reply.answer(200, row === undefined ? notFound('the user of this token') : represent(site, row))
  })
}

/**
 * The users of accounts, and `self`, who may have none. Of the accounts that a user has access to, each shows only these: the others are none of the
 * caller's business.
 */
function selectUsers(database: Reader, accountIds: readonly string[], self?: string) {
  return database.selectFrom('users').selectAll('users')
    .select((eb) => jsonArrayFrom(eb.selectFrom('accounts').select(['accounts.id', 'accounts.name', 'accounts.status', 'accounts.owner_id'])
      .where((one) => one('accounts.id', '=', one.fn.any(one.val([...accountIds])))).where(hasUser()).orderBy('accounts.id')).as('accounts'))
    .where((where) => where.or([
      ...self === undefined ? [] : [where('users.id', '=', self)],
      where.exists(where.selectFrom('accounts').select('accounts.id').where((one) => one('accounts.id', '=', one.fn.any(one.val([...accountIds])))).where(hasUser())),
    ]))
}

/** True if the account is owned by the user of the outer query, or open to that user by an accepted collaboration. */
function hasUser() {
  return sql<boolean>`(accounts.owner_id = users.id or exists (
    select from collaborations where collaborations.account_id = accounts.id and collaborations.user_id = users.id and collaborations.status = 'accepted'))`
}

async function ownerOf(database: Reader, accountId: string): Promise<string> {
  return (await database.selectFrom('accounts').select('owner_id').where('id', '=', accountId).executeTakeFirstOrThrow()).owner_id
}

type Row = InferResult<ReturnType<typeof selectUsers>>[number]

function represent(site: Site, row: Row): Static<typeof User> {
  const own = row.accounts.find(({ owner_id }) => owner_id === row.id)
  return {
    ...nestedUser(site, row), email_verified: row.email_verified, ssh_key: row.ssh_key ?? '', messaging_pref: row.messaging_pref,
    created_at: formatTime(row.created_at), accounts: row.accounts.map((account) => nestedAccount(site, account)),
    default_account: own === undefined ? null : nestedAccount(site, own),
  }
}
