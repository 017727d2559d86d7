/**
 * Accounts, in their full and collected form. Their status and limits come from the region file.
 *
 * The password of an account for the image library's FTP server is random. The database has only its SHA-256, in
 * hexadecimal.
 */
import type { FastifyRequest, FastifySchema } from 'fastify'
import { sql, type InferResult } from 'kysely'
import { jsonArrayFrom, jsonObjectFrom } from 'kysely/helpers/postgres'
import Type, { type Static, type TSchema } from 'typebox'
import { memberRequester } from '../auth/requester.ts'
import { digest, newSecret } from '../auth/secrets.ts'
import type { AccountRequester } from '../changes/account-changes.ts'
import { usageOfAccounts, type Usage } from '../changes/limits.ts'
import { usersOf } from '../changes/members.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { ACCOUNT_STATES, type ChangeRequest } from '../model/account-states.ts'
import { countryName } from '../model/countries.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { parseVatNumber } from '../model/vat-number.ts'
import { noSuch } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, byText, equals, FEW_ROWS_AT_ONCE } from './lists.ts'
import { addMember, idOf } from './members.ts'
import { NESTED, NullableString, NullableTime, type Site, Time } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

const Megabytes = Type.Integer({ description: 'MB.' })
const Empty = Type.Array(Type.Object({}), {
  description: 'Always empty: this resource is not implemented.',
})
const Collected = Type.Object(
  {
    ...NESTED.account.schema.properties,
    servers_used: Type.Integer(),
    ram_limit: Megabytes,
    ram_used: Megabytes,
    dbs_instances_used: Type.Integer(),
    dbs_ram_limit: Megabytes,
    dbs_ram_used: Megabytes,
    cloud_ips_limit: Type.Integer(),
    cloud_ips_used: Type.Integer(),
    load_balancers_limit: Type.Integer(),
    load_balancers_used: Type.Integer(),
    block_storage_limit: Megabytes,
    block_storage_used: Megabytes,
    owner: NESTED.user.schema,
    users: Type.Array(NESTED.user.schema),
    clients: Type.Array(NESTED.apiClient.schema),
    servers: Type.Array(NESTED.server.schema),
    load_balancers: Empty,
    database_servers: Type.Array(NESTED.databaseServer.schema),
    database_snapshots: Empty,
    cloud_ips: Type.Array(NESTED.cloudIp.schema),
    server_groups: Type.Array(NESTED.serverGroup.schema),
    firewall_policies: Empty,
    images: Type.Array(NESTED.image.schema),
    zones: Type.Array(NESTED.zone.schema),
    volumes: Empty,
  },
  { title: 'CollectedAccount' },
)
const Account = Type.Object(
  {
    ...Collected.properties,
    address_1: Type.String(),
    address_2: Type.String(),
    city: Type.String(),
    county: Type.String(),
    postcode: Type.String(),
    country_code: Type.String(),
    country_name: Type.String(),
    vat_registration_number: NullableString,
    telephone_number: Type.String(),
    telephone_verified: Type.Boolean(),
    verified_telephone: NullableString,
    verified_at: NullableTime,
    verified_ip: NullableString,
    valid_credit_card: Type.Boolean(),
    created_at: Time,
    library_ftp_host: Type.String(),
    library_ftp_user: Type.String(),
    library_ftp_password: NullableString,
  },
  { title: 'Account' },
)

const Line = Type.String({ maxLength: 255, format: 'line' })
const Update = Type.Object(
  {
    name: Type.Optional(Type.String({ minLength: 1, maxLength: 255, format: 'line' })),
    address_1: Type.Optional(Line),
    address_2: Type.Optional(Line),
    city: Type.Optional(Line),
    county: Type.Optional(Line),
    postcode: Type.Optional(Line),
    country_code: Type.Optional(Type.String({ format: 'country-code' })),
    vat_registration_number: Type.Optional(
      Type.Union([Type.Null(), Type.Literal(''), Type.String({ format: 'eu-vat-number' })], {
        description: 'null or an empty text: none.',
      }),
    ),
    telephone_number: Type.Optional(
      Type.String({ format: 'telephone', description: 'Of E.164. The verified number stays the same.' }),
    ),
  },
  { title: 'AccountChange', examples: [{ address_1: "12 St James's Square", city: 'London', postcode: 'SW1Y 4JH' }] },
)

/** The fields that an update writes as they were sent. */
const TEXTS = [
  'name',
  'address_1',
  'address_2',
  'city',
  'county',
  'postcode',
  'country_code',
  'telephone_number',
] as const

/** Adds the routes for which a user need not name an account. */
export function addAccountRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, site } = parts
  addList(server, RESOURCES.account, {
    description: 'The accounts that the caller may read: that of an API client; those that a user owns or works for.',
    form: Collected,
    order: [byText('accounts.id')],
    filters: { name: equals('accounts.name'), status: equals('accounts.status', { values: ACCOUNT_STATES }) },
    rowsAtOnce: FEW_ROWS_AT_ONCE,
    select: ({ accountIds }) => selectAccounts(db, accountIds),
    represent: async (rows) => {
      const usage = await usageOfAccounts(
        db,
        rows.map(({ id }) => id),
      )
      // without one that was deleted between the queries
      return rows.filter(({ id }) => usage.has(id)).map((row) => collectedAccount(site, row, usage.get(row.id)!))
    },
  })
  addMember(server, db, RESOURCES.account, {
    description: 'Its full form: with its address, its limits and what uses them.',
    form: Account,
    load: async (database, { accountIds }, id) => {
      if (!accountIds.includes(id)) throw noSuch('account', id)
      return loadAccount(database, site, id)
    },
  })
  addChanges(server, parts, {
    ...{ path: '/accounts/:id', params: RESOURCES.account.params },
    update: {
      operationId: 'updateAccount',
      summary: 'Change an account',
      description: 'Its name, address, VAT number and telephone number. The region file sets its status and limits.',
    },
    reset: 'resetFtpPassword',
    requests: ['PUT /accounts/ID', 'POST /accounts/ID/reset_ftp_password'],
    requesterOf: (request) => {
      const id = idOf(request)
      if (!request.accountIds.includes(id)) throw noSuch('account', id)
      return memberRequester(request, id)
    },
  })
}

/** Adds `/account`: the account for which the request acts. */
export function addChosenAccountRoute(server: ApiServer, parts: ResourceParts): void {
  const { db, site } = parts
  addMember(server, db, RESOURCES.account, {
    path: '/account',
    operationId: 'getCurrentAccount',
    summary: 'Get the account of the request',
    description: 'The account for which the request acts, in its full form.',
    form: Account,
    load: (database, { caller }) => loadAccount(database, site, caller.accountId),
  })
  addChanges(server, parts, {
    ...{ path: '/account', params: undefined },
    update: {
      operationId: 'updateCurrentAccount',
      summary: 'Change the account of the request',
      description: 'The same as for an account that is named by its id.',
    },
    reset: 'resetCurrentFtpPassword',
    requests: ['PUT /account', 'POST /account/reset_ftp_password'],
    requesterOf: ({ caller }) => caller,
  })
}

/** The routes that change an account. `reset`: the id of that operation. `requests`: that of the update is the first. */
interface AccountChangeRoutes {
  readonly path: string
  readonly params: TSchema | undefined
  readonly update: Pick<FastifySchema, 'operationId' | 'summary' | 'description'>
  readonly reset: string
  readonly requests: readonly [ChangeRequest, ChangeRequest]
  readonly requesterOf: (request: FastifyRequest) => AccountRequester
}

function addChanges(
  server: ApiServer,
  { accounts, site }: ResourceParts,
  { path, params, update: about, reset, requests, requesterOf }: AccountChangeRoutes,
): void {
  const schema = { tags: RESOURCES.account.tags, response: { 200: Account }, ...(params && { params }) }
  server.put(path, { schema: { ...about, ...schema, body: Update } }, async (request) => {
    const requester = requesterOf(request)
    return await accounts.commit(requester, (tx) => update(tx, site, requester.accountId, request.body), requests[0])
  })
  server.post(
    `${path}/reset_ftp_password`,
    {
      schema: {
        operationId: reset,
        summary: 'Get a new password for the FTP server of the image library',
        description: 'The response is the only one that has it.',
        ...schema,
      },
    },
    async (request) => {
      const requester = requesterOf(request)
      return await accounts.commit(requester, (tx) => resetFtpPassword(tx, site, requester.accountId), requests[1])
    },
  )
}

async function update(
  tx: Tx,
  site: Site,
  id: string,
  { vat_registration_number: vat, ...body }: Static<typeof Update>,
): Promise<Static<typeof Account>> {
  const values = {
    ...Object.fromEntries(TEXTS.filter((field) => body[field] !== undefined).map((field) => [field, body[field]])),
    ...(vat !== undefined && { vat_registration_number: parseVatNumber(vat ?? '') ?? null }),
  }
  if (Object.keys(values).length > 0) await tx.updateTable('accounts').set(values).where('id', '=', id).execute()
  return loadAccount(tx, site, id)
}

/** The response is the only one that has the password. */
async function resetFtpPassword(tx: Tx, site: Site, id: string): Promise<Static<typeof Account>> {
  const password = newSecret()
  await tx
    .updateTable('accounts')
    .set({ library_ftp_password_hash: digest(password).toString('hex') })
    .where('id', '=', id)
    .execute()
  const account = await loadAccount(tx, site, id)
  return { ...account, library_ftp_password: password }
}

/** Accounts with everything that their forms show, in one query. */
function selectAccounts(database: Reader, ids: readonly string[]) {
  return database
    .selectFrom('accounts')
    .selectAll('accounts')
    .select((eb) => [
      jsonObjectFrom(
        eb.selectFrom('users').select(NESTED.user.columns).whereRef('users.id', '=', 'accounts.owner_id'),
      ).as('owner'),
      jsonArrayFrom(
        eb
          .selectFrom('users')
          .select(NESTED.user.columns)
          .where(sql<boolean>`users.id in ${usersOf(sql`array[accounts.id]`)}`)
          .orderBy('users.id'),
      ).as('users'),
      jsonArrayFrom(
        eb
          .selectFrom('api_clients')
          .select(NESTED.apiClient.columns)
          .whereRef('api_clients.account_id', '=', 'accounts.id')
          .where('api_clients.revoked_at', 'is', null)
          .orderBy('api_clients.id'),
      ).as('clients'),
      jsonArrayFrom(
        eb
          .selectFrom('servers')
          .select(NESTED.server.columns)
          .whereRef('servers.account_id', '=', 'accounts.id')
          .where('servers.deleted_at', 'is', null)
          .orderBy('servers.id'),
      ).as('servers'),
      jsonArrayFrom(
        eb
          .selectFrom('cloud_ips')
          .select(NESTED.cloudIp.columns)
          .whereRef('cloud_ips.account_id', '=', 'accounts.id')
          .orderBy('cloud_ips.id'),
      ).as('cloud_ips'),
      jsonArrayFrom(
        eb
          .selectFrom('database_servers')
          .select(NESTED.databaseServer.columns)
          .whereRef('database_servers.account_id', '=', 'accounts.id')
          .where('database_servers.deleted_at', 'is', null)
          .orderBy('database_servers.id'),
      ).as('database_servers'),
      jsonArrayFrom(
        eb
          .selectFrom('server_groups')
          .select(NESTED.serverGroup.columns)
          .whereRef('server_groups.account_id', '=', 'accounts.id')
          .orderBy('server_groups.id'),
      ).as('server_groups'),
      jsonArrayFrom(
        eb
          .selectFrom('images')
          .select(NESTED.image.columns)
          .whereRef('images.account_id', '=', 'accounts.id')
          .where('images.status', '!=', 'deleted')
          .orderBy('images.id'),
      ).as('images'),
      jsonArrayFrom(
        eb
          .selectFrom('zones')
          .select(NESTED.zone.columns)
          .where('zones.removed_at', 'is', null)
          .orderBy('zones.handle'),
      ).as('zones'),
      eb.selectFrom('region').select('region.library_ftp_host').as('library_ftp_host'),
    ])
    .where((eb) => eb('accounts.id', '=', eb.fn.any(eb.val([...ids]))))
}

type Row = InferResult<ReturnType<typeof selectAccounts>>[number]

async function loadAccount(database: Reader, site: Site, id: string): Promise<Static<typeof Account>> {
  const row = await selectAccounts(database, [id]).executeTakeFirstOrThrow(() => noSuch('account', id))
  const usage = (await usageOfAccounts(database, [id])).get(id)
  if (usage === undefined) throw noSuch('account', id) // deleted between the queries
  const { address_1, address_2, city, county, postcode, country_code, vat_registration_number } = row
  const { telephone_number, telephone_verified, verified_telephone, verified_ip, valid_credit_card } = row
  return {
    ...collectedAccount(site, row, usage),
    ...{ address_1, address_2, city, county, postcode, country_code, vat_registration_number },
    ...{ telephone_number, telephone_verified, verified_telephone, verified_ip, valid_credit_card },
    country_name: countryName(country_code),
    verified_at: formatOptionalTime(row.verified_at),
    created_at: formatTime(row.created_at),
    library_ftp_host: row.library_ftp_host ?? '',
    library_ftp_user: id,
    library_ftp_password: null,
  }
}

function collectedAccount(site: Site, row: Row, usage: Usage): Static<typeof Collected> {
  const { ram_limit, dbs_ram_limit, cloud_ips_limit, load_balancers_limit, block_storage_limit } = row
  return {
    ...NESTED.account.show(site, row),
    servers_used: usage.servers_used,
    ram_limit,
    ram_used: usage.ram_used,
    dbs_instances_used: usage.dbs_instances_used,
    dbs_ram_limit: Math.max(dbs_ram_limit, usage.dbs_ram_used),
    dbs_ram_used: usage.dbs_ram_used,
    cloud_ips_limit,
    cloud_ips_used: usage.cloud_ips_used,
    load_balancers_limit,
    load_balancers_used: 0,
    block_storage_limit,
    block_storage_used: 0,
    owner: NESTED.user.show(site, row.owner!),
    users: row.users.map((user) => NESTED.user.show(site, user)),
    clients: row.clients.map((client) => NESTED.apiClient.show(site, client)),
    servers: row.servers.map((server) => NESTED.server.show(site, server)),
    load_balancers: [],
    database_servers: row.database_servers.map((one) => NESTED.databaseServer.show(site, one)),
    database_snapshots: [],
    cloud_ips: row.cloud_ips.map((cloudIp) => NESTED.cloudIp.show(site, cloudIp)),
    server_groups: row.server_groups.map((group) => NESTED.serverGroup.show(site, group)),
    firewall_policies: [],
    images: row.images.map((image) => NESTED.image.show(site, image)),
    zones: row.zones.map((zone) => NESTED.zone.show(site, zone)),
    volumes: [],
  }
}
