/**
 * Applies a region file: inserts and changes rows until the database has what the file says. Columns that requests can
 * change too get the value of the file only in a new row. Applying a file again changes nothing. Rows that the file
 * does not have stay, unless `prune` deletes them; a row in use cannot be deleted.
 */
import { releaseCloudIpsOfDatabaseServers } from '../changes/cloud-ips.ts'
import { sql, type RawBuilder, type Transaction } from 'kysely'
import { nextId } from '../changes/allocate.ts'
import { lockAccount } from '../changes/limits.ts'
import { markChanged } from '../database/outbox.ts'
import type { Tx } from '../database/transaction.ts'
import { DEFAULT_LIMITS } from '../model/account-limits.ts'
import { parseVatNumber } from '../model/vat-number.ts'
import { endSessions, wantedCredentials, type Credentials } from './credentials.ts'
import type { RegionFile } from './schema.ts'
import type { RegionSecrets } from './secrets.ts'

type Row = Readonly<Record<string, unknown>>
/** The rows of one table as the file wants them. `key`: the columns that identify a row. */
interface Wanted {
  readonly table: string
  readonly key: readonly string[]
  readonly rows: readonly Row[]
  readonly isPruned: boolean
}
type AnyTables = Record<string, Record<string, unknown>>

/** The columns that are in the records of servers (publish/compose.ts) and that a file can change. */
export const SEEN_BY_GUESTS: Readonly<Record<string, readonly string[]>> = {
  region: ['name', 'domain'],
  zones: ['handle'],
  server_types: ['handle'],
}
/** The advisory lock for applying a file: any fixed number that no other lock has (database/embedded.ts has one). */
const LOCK = 8_171
/** Tables whose rows requests can make too. When `prune` deletes an account, it deletes these rows with it. */
const MADE_WITH_THE_API = ['api_clients', 'applications']
/**
 * Columns that requests can change (docs/region-file.md#what-apply-changes). The file has the values of a new row; a row that
 * exists keeps its own.
 */
const CHANGED_BY_REQUESTS: Readonly<Record<string, readonly string[]>> = {
  users: ['name', 'ssh_key', 'messaging_pref'],
  accounts: [
    'name',
    'address_1',
    'address_2',
    'city',
    'county',
    'postcode',
    'country_code',
    'vat_registration_number',
    'telephone_number',
  ],
  images: ['name', 'username', 'status', 'locked', 'description', 'arch', 'public', 'compatibility_mode', 'min_ram'],
  api_clients: ['name', 'description', 'permissions_group'],
  applications: ['name', 'description'],
  database_servers: ['name', 'description'],
}
/**
 * Queries for the rows that refer to a row of a table. `is_alive`: false for a deleted server, which clients can still
 * read, and a removed hypervisor.
 */
const REFERENCES: Readonly<Record<string, (id: string) => RawBuilder<{ is_alive: boolean }>>> = {
  zones: (id) =>
    sql`select deleted_at is null as is_alive from servers where zone_id = ${id} union select removed_at is null from hypervisors where zone_id = ${id}`,
  server_types: (id) => sql`select deleted_at is null as is_alive from servers where server_type_id = ${id}`,
  hypervisors: (name) =>
    sql`select deleted_at is null as is_alive from servers where ${name} in (hypervisor, migrating_to)`,
  images: (id) => sql`select deleted_at is null as is_alive from servers where image_id = ${id}`,
}
const FOREIGN_KEY_VIOLATION = '23503'
const UNIQUE_VIOLATION = '23505'

/** A row that cannot be deleted because others refer to it. */
export class InUse extends Error {}

/**
 * Applies a file and its secrets in a transaction, and returns the difference: one line for each row, without secrets.
 */
export async function applyRegion(
  tx: Tx,
  file: RegionFile,
  prune: boolean,
  secrets: RegionSecrets,
): Promise<readonly string[]> {
  await sql`select pg_advisory_xact_lock(${LOCK})`.execute(tx) // one at a time: two could insert the same row
  const credentials = await wantedCredentials(tx, file, secrets)
  const wanted = wantedRows(file, secrets, credentials)
  const difference: string[] = []
  const seen = new Map<string, readonly string[]>()
  for (const table of wanted) {
    const applied = await applyTable(tx, table)
    seen.set(table.table, applied.seen)
    difference.push(...applied.lines)
  }
  await finishDatabaseServers(tx)
  await endSessions(tx, credentials)
  difference.push(...(await applyCollaborations(tx, file)), ...(await addDefaultGroups(tx)))
  if (prune) for (const table of wanted.toReversed()) difference.push(...(await pruneTable(tx, table)))
  const withIds = [
    file.zones,
    file.server_types,
    file.images,
    file.users,
    file.accounts,
    file.api_clients,
    file.applications ?? [],
  ]
  await sql`insert into given_ids (id) select unnest(${withIds.flat().map(({ id }) => id)}::text[]) on conflict do nothing`.execute(
    tx,
  )
  const { rows: servers } = await sql<{ id: string }>`
    select id from servers where deleted_at is null
      and (${seen.get('region')!.length > 0} or zone_id = any(${seen.get('zones')}) or server_type_id = any(${seen.get('server_types')}))`.execute(
    tx,
  )
  await markChanged(
    tx,
    servers.map(({ id }) => id),
  )
  return difference
}

function wantedRows(file: RegionFile, secrets: RegionSecrets, credentials: readonly Credentials[]): readonly Wanted[] {
  const zoneIds = new Map(file.zones.map(({ id, handle }) => [handle, id]))
  const secretOf = (id: string) =>
    secrets.digests.has(id)
      ? { secret_sha256: secrets.digests.get(id), secret_file_sha256: secrets.digests.get(id) }
      : {}
  const table = (name: string, rows: readonly Row[], key: readonly string[] = ['id'], isPruned = true): Wanted => ({
    table: name,
    key,
    rows,
    isPruned,
  })
  return [
    table(
      'region',
      [
        {
          only_row: true,
          name: file.name,
          domain: file.domain,
          library_ftp_host: file.library_ftp_host ?? `ftp.library.${file.domain}`,
        },
      ],
      ['only_row'],
      false,
    ),
    table(
      'zones',
      file.zones.map((zone) => ({ ...zone, removed_at: null })),
    ),
    table(
      'server_types',
      file.server_types.map((type) => ({ status: 'available', storage_type: 'local', ...type, removed_at: null })),
    ),
    table(
      'hypervisors',
      file.hypervisors.map(({ name, zone, ram }) => ({ name, zone_id: zoneIds.get(zone), ram, removed_at: null })),
      ['name'],
    ),
    table(
      'users',
      file.users.map(({ ssh_key = '', ...user }, i) => ({
        email_verified: true,
        messaging_pref: true,
        ...without(user, 'password_file', 'totp_secret_file'),
        ssh_key: ssh_key.trim() || null,
        password_hash: credentials[i]!.passwordHash,
        totp_secret: credentials[i]!.totpSecret,
      })),
    ),
    table(
      'accounts',
      file.accounts.map(({ owner, verified_at, vat_registration_number = '', ...account }) => ({
        status: 'active',
        telephone_verified: true,
        verified_telephone: null,
        verified_ip: null,
        valid_credit_card: true,
        dbs_ram_limit: 0,
        load_balancers_limit: 0,
        block_storage_limit: 0,
        ...DEFAULT_LIMITS,
        publish_images: false,
        address_1: '',
        address_2: '',
        city: '',
        county: '',
        postcode: '',
        ...without(account, 'collaborators'),
        vat_registration_number: parseVatNumber(vat_registration_number) ?? null,
        owner_id: owner,
        verified_at: verified_at === undefined ? null : new Date(verified_at),
      })),
    ),
    table(
      'images',
      file.images.map(({ account, ...image }) => ({
        handle: null,
        username: 'root',
        status: 'available',
        locked: false,
        description: '',
        source: image.name,
        source_trigger: 'manual',
        source_type: 'upload',
        arch: 'x86_64',
        official: account === undefined,
        public: account === undefined,
        compatibility_mode: false,
        min_ram: null,
        licence_name: null,
        ...image,
        account_id: account ?? null,
      })),
    ),
    table(
      'api_clients',
      file.api_clients.map(({ account, ...client }) => ({
        description: '',
        permissions_group: 'full',
        ...without(client, 'secret_file'),
        account_id: account,
        ...secretOf(client.id),
      })),
    ),
    table(
      'applications',
      (file.applications ?? []).map(({ account, ...application }) => ({
        description: '',
        ...without(application, 'secret_file'),
        account_id: account,
        ...secretOf(application.id),
      })),
    ),
    table(
      'database_server_types',
      (file.database_server_types ?? []).map((type) => ({ description: '', ...type })),
    ),
    table(
      'database_servers',
      (file.database_servers ?? []).map(({ account, zone, database_server_type, ...server }) => ({
        name: '',
        description: '',
        status: 'active',
        locked: false,
        allow_access: [],
        maintenance_weekday: 0,
        maintenance_hour: 6,
        ...server,
        account_id: account,
        zone_id: zoneIds.get(zone),
        database_server_type_id: database_server_type,
      })),
    ),
    table(
      'address_pools',
      Object.entries(file.address_pools).flatMap(([kind, ranges]) => ranges.map((range) => ({ kind, range }))),
      ['kind', 'range'],
    ),
  ]
}

function without(row: Row, ...fields: readonly string[]): Row {
  return Object.fromEntries(Object.entries(row).filter(([field]) => !fields.includes(field)))
}

/** The difference of a table, and the keys of the changed rows that guests see. */
interface Applied {
  readonly lines: readonly string[]
  readonly seen: readonly string[]
}

async function applyTable(tx: Tx, { table, key, rows }: Wanted): Promise<Applied> {
  const database = tx as unknown as Transaction<AnyTables>
  const keyOf = (row: Row) => key.map((column) => String(row[column])).join(' ')
  const present = new Map((await database.selectFrom(table).selectAll().execute()).map((row) => [keyOf(row), row]))
  const nameOf = (row: Row) => (row['only_row'] === true ? String(row['name']) : keyOf(row))
  const lines: string[] = []
  const seen: string[] = []
  for (const wanted of rows) {
    const before = present.get(keyOf(wanted))
    const row = before !== undefined && isMoved(table, wanted, before) ? { ...wanted, ...secretOf(wanted) } : wanted
    if (before === undefined) {
      await write(database.insertInto(table).values(row), `${label(table)} ${nameOf(row)}`)
      lines.push(`+ ${label(table)} ${nameOf(row)}`)
      continue
    }
    const different = differenceOf(table, row, before)
    if (different.length === 0) continue
    if (different.some((column) => SEEN_BY_GUESTS[table]?.includes(column))) seen.push(keyOf(row))
    const values = Object.fromEntries(different.map((column) => [column, row[column]]))
    let update = database
      .updateTable(table)
      .set('updated_at' in before ? { ...values, updated_at: new Date() } : values)
    for (const column of key) update = update.where(column, '=', row[column])
    await write(update, `${label(table)} ${nameOf(row)}`)
    lines.push(`~ ${label(table)} ${nameOf(row)}: ${describe(different, before, row)}`)
  }
  return { lines, seen }
}

/**
 * Runs an insert or update of the row `name`. Rejects with the remedy where another row has a value that only one may
 * have, such as a handle.
 */
async function write(query: { execute(): Promise<unknown> }, name: string): Promise<void> {
  try {
    await query.execute()
  } catch (error) {
    const { code, detail = '' } = error as { readonly code?: string; readonly detail?: string }
    if (code !== UNIQUE_VIOLATION) throw error
    throw new Error(
      `${name}: another row of the database has the same value (${detail}): first apply a file in which that row has another value, or --prune it. Nothing was changed`,
      { cause: error },
    )
  }
}

/** What has changed in a row, without secrets. */
function describe(columns: readonly string[], before: Row, row: Row): string {
  const changes = columns.map((column) =>
    column.startsWith('secret')
      ? 'secret'
      : isSecret(column)
        ? column
        : `${column} ${text(before[column])} -> ${text(row[column])}`,
  )
  return [...new Set(changes)].join(', ')
}

/** The secret that the file has for a client; null without one. */
function secretOf({ secret_sha256 = null, secret_file_sha256 = null }: Row): Row {
  return { secret_sha256, secret_file_sha256 }
}

/**
 * True for a client or application that the file gives to another account. It gets the file's secret: the old account
 * knows one that was reset.
 */
function isMoved(table: string, row: Row, before: Row): boolean {
  return MADE_WITH_THE_API.includes(table) && row['account_id'] !== before['account_id']
}

/**
 * The columns to write. A secret is written only if the file has another one than before, or the client moves, so a
 * client keeps the secret of a later reset_secret.
 */
function differenceOf(table: string, row: Row, before: Row): readonly string[] {
  const kept = isOfRegion(table, row) ? [] : (CHANGED_BY_REQUESTS[table] ?? [])
  const different = Object.keys(row).filter(
    (column) => !kept.includes(column) && text(row[column]) !== text(before[column]),
  )
  return different.includes('secret_file_sha256') || isMoved(table, row, before)
    ? different
    : different.filter((column) => column !== 'secret_sha256')
}

/** True for an image without an account: no request can change it. */
function isOfRegion(table: string, row: Row): boolean {
  return table === 'images' && row['account_id'] === null
}

/** Deletes the rows that the file does not have. API clients and applications that were made with the API stay. */
async function pruneTable(tx: Tx, { table, key, rows, isPruned }: Wanted): Promise<string[]> {
  if (!isPruned) return []
  const database = tx as unknown as Transaction<AnyTables>
  const keyOf = (row: Row) => key.map((column) => String(row[column])).join(' ')
  const kept = new Set(rows.map(keyOf))
  const given = new Set((await tx.selectFrom('given_ids').select('id').execute()).map(({ id }) => id))
  const lines: string[] = []
  for (const row of await database.selectFrom(table).selectAll().execute()) {
    if (MADE_WITH_THE_API.includes(table) && !given.has(String(row['id']))) continue
    if (row['source_server_id'] != null) continue // a snapshot: no region file has one
    if (kept.has(keyOf(row))) continue
    const isShown = await isShownWithDeleted(tx, table, key[0]!, keyOf(row))
    if (isShown && (row['removed_at'] != null || row['status'] === 'deleted')) continue // removed before
    if (isShown)
      await database
        .updateTable(table)
        .set(table === 'images' ? { status: 'deleted', handle: null } : { removed_at: new Date() })
        .where(key[0]!, '=', keyOf(row))
        .execute()
    else lines.push(...(await deleteRow(tx, table, key, row)))
    lines.push(`- ${label(table)} ${keyOf(row)}`)
  }
  return lines
}

/**
 * True if only deleted servers and removed hypervisors refer to a row, so it must stay. Locks it, so that no new server
 * uses it meanwhile.
 */
async function isShownWithDeleted(tx: Tx, table: string, keyColumn: string, key: string): Promise<boolean> {
  const references = REFERENCES[table]
  if (references === undefined) return false
  await sql`select from ${sql.table(table)} where ${sql.ref(keyColumn)} = ${key} for update`.execute(tx)
  const { rows } = await references(key).execute(tx)
  return rows.length > 0 && !rows.some(({ is_alive }) => is_alive)
}

/**
 * Deletes a row with the rows that belong to it, and returns a line for each collaboration of a user. Throws InUse if
 * other rows refer to it.
 */
async function deleteRow(tx: Tx, table: string, key: readonly string[], row: Row): Promise<string[]> {
  let remove = (tx as unknown as Transaction<AnyTables>).deleteFrom(table)
  for (const column of key) remove = remove.where(column, '=', row[column])
  const lines: string[] = []
  try {
    if (table === 'accounts')
      await sql`delete from server_groups where account_id = ${row['id']} and is_default`.execute(tx)
    if (table === 'accounts') {
      for (const made of [...MADE_WITH_THE_API, 'collaborations'])
        await sql`delete from ${sql.table(made)} where account_id = ${row['id']}`.execute(tx)
    }
    if (table === 'database_servers') await releaseCloudIpsOfDatabaseServers(tx, [String(row['id'])])
    if (table === 'users') {
      const ended = await tx
        .deleteFrom('collaborations')
        .where('user_id', '=', String(row['id']))
        .returning('account_id')
        .execute()
      lines.push(...ended.map(({ account_id }) => `- collaboration of ${String(row['id'])} in ${account_id}`))
      await sql`update collaborations set inviter_id = null where inviter_id = ${row['id']}`.execute(tx)
    }
    await remove.execute()
    return lines
  } catch (error) {
    if ((error as { code?: string }).code !== FOREIGN_KEY_VIOLATION) throw error
    throw new InUse(
      `${label(table)} ${key.map((column) => String(row[column])).join(' ')} is in use and cannot be deleted: nothing was changed`,
      { cause: error },
    )
  }
}

/**
 * Makes the collaborations of the file, which are accepted from the start. A pending invitation of such a user becomes
 * accepted. Once the user or the account has ended or rejected one, the file makes no other. Collaborations that the
 * file does not have stay.
 */
async function applyCollaborations(tx: Tx, file: RegionFile): Promise<string[]> {
  const lines: string[] = []
  for (const { id: account_id, owner, collaborators = [] } of file.accounts) {
    // an invitation at the same time would make a second collaboration
    if (collaborators.length > 0) await lockAccount(tx, account_id)
    for (const user_id of collaborators) {
      const email = file.users.find((user) => user.id === user_id)!.email_address
      const rows = await tx
        .selectFrom('collaborations')
        .select(['id', 'status'])
        .where('account_id', '=', account_id)
        .where((where) => where.or([where('user_id', '=', user_id), sql<boolean>`lower(email) = lower(${email})`]))
        .execute()
      if (rows.some(({ status }) => ['accepted', 'rejected', 'ended'].includes(status))) continue
      const pending = rows.find(({ status }) => status === 'pending')
      const accepted = { user_id, status: 'accepted', started_at: new Date() } as const
      if (pending !== undefined) {
        await tx.updateTable('collaborations').set(accepted).where('id', '=', pending.id).execute()
        lines.push(`~ collaboration of ${user_id} in ${account_id}: pending -> accepted`)
        continue
      }
      await tx
        .insertInto('collaborations')
        .values({
          ...accepted,
          id: await nextId(tx, 'col'),
          account_id,
          inviter_id: owner,
          email,
          role: 'admin',
          finished_at: null,
        })
        .execute()
      lines.push(`+ collaboration of ${user_id} in ${account_id}`)
    }
  }
  return lines
}

/**
 * Completes what the file sets: a deleted database server gets the time of its deletion. A deleting or deleted one
 * loses its cloud IPs, and so does one that has moved to another account.
 */
async function finishDatabaseServers(tx: Tx): Promise<void> {
  await sql`update database_servers set deleted_at = case when status = 'deleted' then now() end where (status = 'deleted') <> (deleted_at is not null)`.execute(
    tx,
  )
  const gone = await tx
    .selectFrom('database_servers')
    .select('id')
    .where('status', 'in', ['deleting', 'deleted'])
    .execute()
  const moved = await tx
    .selectFrom('database_servers')
    .innerJoin('cloud_ips', 'cloud_ips.database_server_id', 'database_servers.id')
    .select('database_servers.id')
    .whereRef('cloud_ips.account_id', '!=', 'database_servers.account_id')
    .execute()
  await releaseCloudIpsOfDatabaseServers(
    tx,
    [...gone, ...moved].map(({ id }) => id),
  )
}

/** Every account has a default server group, which servers join when none is named. */
async function addDefaultGroups(tx: Tx): Promise<string[]> {
  const accounts = await tx
    .selectFrom('accounts')
    .select('id')
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom('server_groups')
            .select('server_groups.id')
            .whereRef('server_groups.account_id', '=', 'accounts.id')
            .where('is_default', '=', true),
        ),
      ),
    )
    .execute()
  for (const { id: account_id } of accounts) {
    await tx
      .insertInto('server_groups')
      .values({
        id: await nextId(tx, 'grp'),
        account_id,
        name: 'default',
        description: 'All servers that name no group',
        is_default: true,
      })
      .execute()
  }
  return accounts.map(({ id }) => `+ default server group of ${id}`)
}

function label(table: string): string {
  return table.replace(/s$/, '').replaceAll('_', ' ')
}

function isSecret(column: string): boolean {
  return column.startsWith('password') || column.startsWith('totp')
}

/** The value of a column as text, for a comparison. */
function text(value: unknown): string {
  if (value instanceof Date) return value.toISOString()
  if (Buffer.isBuffer(value)) return value.toString('hex')
  return String(value)
}
