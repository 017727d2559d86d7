/**
 * Accounts, in their full and collected form. Their status and limits come from the region file.
 *
 * The password of an account for the image library's FTP server is random. The database has only its SHA-256, in
 * hexadecimal.
 */
import type { FastifyRequest } from 'fastify'
import { sql, type RawBuilder } from 'kysely'
import Type from 'typebox'
import { accountOf } from '../auth/caller.ts'
import { digest, newSecret } from '../auth/secrets.ts'
import { usersOf } from '../changes/members.ts'
import { setValues } from '../changes/own-rows.ts'
import { countryName } from '../model/countries.ts'
import { noSuch } from '../model/refusal.ts'
import { parseVatNumber } from '../model/vat-number.ts'
import { Field, fixed, formsOf, linked, linkedAll, type Form } from './kit/forms.ts'
import { byText, FEW_ROWS_AT_ONCE, idOf } from './kit/lists.ts'
import { Members, type MembersOf } from './kit/members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { Megabytes, NullableString, NullableTime, Time } from './kit/schemas.ts'
import { RESOURCES, type Resource } from './kit/table.ts'

const Text = Type.String()
const Count = Type.Integer()
const empty = fixed(Type.Array(Type.Object({}), { description: 'Always empty: this resource is not implemented.' }), [])
/** The resources of the account that its lists show. */
function areOfAccount({ table, isPresent }: Resource): RawBuilder<boolean> {
  return sql`${sql.ref(`${table}.account_id`)} = accounts.id and ${isPresent}`
}
const ofAccount = (form: Form) => linkedAll(form, sql`where ${areOfAccount(form.resource)}`)

interface Use {
  readonly count: number
  readonly ram: number
  readonly limit: number
}
/** How many resources the account has, the RAM of their types, and its limit of RAM. */
function useOf(resource: Resource, limit: 'ram_limit' | 'dbs_ram_limit'): RawBuilder<unknown> {
  const type = `${resource.table.slice(0, -1)}_type`
  const isOfType = sql`${sql.ref(`${type}s.id`)} = ${sql.ref(`${resource.table}.${type}_id`)}`
  return sql`(
    select json_build_object('count', count(*), 'ram', coalesce(sum(ram), 0), 'limit', ${sql.ref(`accounts.${limit}`)})
    from ${sql.table(resource.table)} join ${sql.table(`${type}s`)} on ${isOfType} where ${areOfAccount(resource)}
  )`
}
const extra = {
  servers_use: useOf(RESOURCES.server, 'ram_limit'),
  databases_use: useOf(RESOURCES.databaseServer, 'dbs_ram_limit'),
  cloud_ips_count: sql`(select count(*)::int from cloud_ips where ${areOfAccount(RESOURCES.cloudIp)})`,
}
const countOf = (column: keyof typeof extra) => new Field(Count, column, ({ count }: Use) => count)
const ramOf = (column: keyof typeof extra) => new Field(Megabytes, column, ({ ram }: Use) => ram)

const COLLECTED = {
  ...NESTED.account.fields,
  servers_used: countOf('servers_use'),
  ram_limit: Megabytes,
  ram_used: ramOf('servers_use'),
  dbs_instances_used: countOf('databases_use'),
  /** The limit, or what is used if that is more. */
  dbs_ram_limit: new Field(Megabytes, 'databases_use', ({ limit, ram }: Use) => Math.max(limit, ram)),
  dbs_ram_used: ramOf('databases_use'),
  cloud_ips_limit: Count,
  cloud_ips_used: new Field(Count, 'cloud_ips_count'),
  load_balancers_limit: Count,
  load_balancers_used: fixed(Count, 0),
  block_storage_limit: Megabytes,
  block_storage_used: fixed(Megabytes, 0),
  owner: linked(NESTED.user, sql`users.id = accounts.owner_id`),
  users: linkedAll(NESTED.user, sql`where users.id in ${usersOf(sql`array[accounts.id]`)}`),
  clients: ofAccount(NESTED.apiClient),
  servers: ofAccount(NESTED.server),
  load_balancers: empty,
  database_servers: ofAccount(NESTED.databaseServer),
  database_snapshots: empty,
  cloud_ips: ofAccount(NESTED.cloudIp),
  server_groups: ofAccount(NESTED.serverGroup),
  firewall_policies: empty,
  images: ofAccount(NESTED.image),
  zones: linkedAll(NESTED.zone, sql`where ${RESOURCES.zone.isPresent}`, { order: sql.ref('zones.handle') }),
  volumes: empty,
}
const FULL = {
  address_1: Text,
  address_2: Text,
  city: Text,
  county: Text,
  postcode: Text,
  country_code: Text,
  country_name: new Field(Text, 'country_code', countryName),
  vat_registration_number: NullableString,
  telephone_number: Text,
  telephone_verified: Type.Boolean(),
  verified_telephone: NullableString,
  verified_at: NullableTime,
  verified_ip: NullableString,
  valid_credit_card: Type.Boolean(),
  created_at: Time,
  library_ftp_host: new Field(Text, sql`(select coalesce(max(library_ftp_host), '') from region)`),
  library_ftp_user: new Field(Text, 'id'),
  library_ftp_password: fixed(NullableString, null),
}
const FORMS = formsOf('account', COLLECTED, FULL, { extra })

const Line = Type.String({ maxLength: 255, format: 'line' })
const Update = Type.Partial(
  Type.Object({
    name: Type.String({ minLength: 1, maxLength: 255, format: 'line' }),
    address_1: Line,
    address_2: Line,
    city: Line,
    county: Line,
    postcode: Line,
    country_code: Type.String({ format: 'country-code' }),
    vat_registration_number: Type.Union([Type.Null(), Type.Literal(''), Type.String({ format: 'eu-vat-number' })], {
      description: 'null or an empty text: none.',
    }),
    telephone_number: Type.String({
      format: 'telephone',
      description: 'Of E.164. The verified number stays the same.',
    }),
  }),
  { title: 'AccountChange', examples: [{ address_1: "12 St James's Square", city: 'London', postcode: 'SW1Y 4JH' }] },
)

/** Adds the routes for which a user need not name an account. */
export function addAccountRoutes(parts: ResourceParts): void {
  const accounts = membersOf(parts, { accountOf: namedAccount })
  accounts.list({
    description: 'The accounts that the caller may read: that of an API client; those that a user owns or works for.',
    order: [byText('accounts.id')],
    rowsAtOnce: FEW_ROWS_AT_ONCE,
  })
  accounts.get('Its full form: with its address, its limits and what uses them.')
  addChanges(
    accounts,
    'Its name, address, VAT number and telephone number. The region file sets its status and limits.',
    'resetFtpPassword',
  )
}

/** Adds `/account`: the account for which the request acts. */
export function addChosenAccountRoute(parts: ResourceParts): void {
  const as = { path: 'account', name: 'CurrentAccount', noun: 'the account of the request' }
  const accounts = membersOf(parts, { as })
  accounts.get('The account for which the request acts, in its full form.')
  addChanges(accounts, 'The same as for an account that is named by its id.', 'resetCurrentFtpPassword')
}

function membersOf(parts: ResourceParts, options: Pick<MembersOf, 'as' | 'accountOf'>): Members {
  const load: MembersOf['load'] = (db, request) =>
    FORMS.form.load(db, parts.site, (options.accountOf ?? accountOf)(request), { where: sql`true` })
  const rows: MembersOf['rows'] = ({ accounts }) => ({ where: sql`accounts.id = any(${[...accounts.ids]}::text[])` })
  return new Members(parts, { ...FORMS, rows, load, ...options })
}

function namedAccount(request: FastifyRequest): string {
  const id = idOf(request)
  if (!request.accounts.ids.includes(id)) throw noSuch('account', id)
  return id
}

/** `description`: of the update. `operationId`: of the reset. */
function addChanges(accounts: Members, description: string, operationId: string): void {
  accounts.update({ description, body: Update }, async ({ tx, accountId, body }) => {
    const { vat_registration_number: vat, ...texts } = body
    const number = vat === undefined ? {} : { vat_registration_number: parseVatNumber(vat ?? '') ?? null }
    await setValues(tx, 'accounts', accountId, { ...texts, ...number })
  })
  accounts.action(
    'reset_ftp_password',
    {
      operationId,
      summary: 'Get a new password for the FTP server of the image library',
      description: 'The response is the only one that has it.',
    },
    async ({ tx, accountId }) => {
      const password = newSecret()
      const library_ftp_password_hash = digest(password).toString('hex')
      await setValues(tx, 'accounts', accountId, { library_ftp_password_hash })
      return { library_ftp_password: password }
    },
  )
}
