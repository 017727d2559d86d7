/**
 * The record of a server, from its rows as they are now (docs/record.md). Pure, but for the query that loads the rows.
 */
import { sql, type InferResult, type RawBuilder, type Selectable } from 'kysely'
import { SCHEMA } from '../../metadata/schema.ts'
import type { ServerStatus } from '../model/server-actions.ts'
import { runPrepared } from '../database/prepared.ts'
import type { Tables } from '../database/tables.ts'
import type { Db } from '../database/transaction.ts'
import { completeOptions, recordOptions } from '../model/metadata-options.ts'
import { cloudIpFqdn } from '../model/names.ts'
import { decodeUserData } from '../model/user-data.ts'

/** A server, as the publisher needs it. `userData`: undefined for none. */
export interface Composed {
  readonly id: string
  readonly status: ServerStatus
  /** True while the compute system has not created the server, or not deleted it. */
  readonly awaitsCompute: boolean
  readonly revision: number
  /** False: it was never published. */
  readonly isPublished: boolean
  readonly record: ReturnType<typeof composeRecord>
  readonly userData: Uint8Array | undefined
  /** Why the last publish failed; null: it did not. */
  readonly fault: string | null
}

/**
 * Loads and composes servers with one query, in the order of their ids: in that order a batch locks them, as
 * markChanged does. Leaves out ids without a server.
 */
export async function composeMany(db: Db, ids: readonly string[]): Promise<readonly Composed[]> {
  return (await runPrepared(db, selectServers(ids, db))).map(composeRow)
}

const OF_CLOUD_IP = sql.raw('cloud_ips.id, interface_id, public_ipv4, public_ipv6, mapped_at')

function selectServers(ids: readonly string[], db: Db) {
  return db
    .selectFrom('servers')
    .innerJoin('server_types', 'server_types.id', 'servers.server_type_id')
    .innerJoin('zones', 'zones.id', 'servers.zone_id')
    .innerJoin('region', (join) => join.onTrue()) // read each time, since applying a file may change it
    .select([
      'servers.id',
      'servers.status',
      'servers.revision',
      'servers.incarnation',
      'servers.is_published',
      'servers.account_id',
      'servers.server_type_id',
      'servers.image_id',
      'servers.zone_id',
      'servers.hypervisor',
      'servers.migrating_to',
      'servers.architecture',
      'servers.created_at',
      'servers.tags',
      'servers.events',
      'servers.metadata_options',
      'servers.user_data',
      'servers.sealed_at',
      'servers.publish_fault',
    ])
    .select([
      'server_types.handle as type_handle',
      'zones.handle as zone_handle',
      'region.name as region_name',
      'region.domain',
      jsonRows<
        'interfaces',
        'id' | 'mac_address' | 'ipv4_address' | 'ipv4_prefix_length' | 'ipv6_address' | 'ipv6_prefix'
      >(
        sql`select id, mac_address, ipv4_address, ipv4_prefix_length, ipv6_address, ipv6_prefix from interfaces
          where server_id = servers.id order by created_at, id`,
      ).as('interfaces'),
      jsonRows<'server_groups', 'id' | 'name'>(
        sql`select id, name from server_groups
          join server_group_members on server_group_members.server_group_id = server_groups.id
          where server_group_members.server_id = servers.id order by id`,
      ).as('groups'),
      jsonRows<'server_keys', 'user_id' | 'key'>(
        sql`select user_id, key from server_keys where server_id = servers.id order by user_id`,
      ).as('keys'),
      jsonRows<'cloud_ips', 'id' | 'interface_id' | 'public_ipv4' | 'public_ipv6'>(
        sql`select id, interface_id, public_ipv4, public_ipv6 from (
          select ${OF_CLOUD_IP} from cloud_ips join interfaces on interfaces.id = cloud_ips.interface_id
          where interfaces.server_id = servers.id
          union all select ${OF_CLOUD_IP} from cloud_ips
            join server_group_members on server_group_members.server_group_id = cloud_ips.server_group_id
          where server_group_members.server_id = servers.id) as mapped order by mapped_at, id`,
      ).as('cloud_ips'),
      sql<boolean>`exists (
        select from compute_actions
        where server_id = servers.id and finished_at is null and kind in ('create', 'delete'))`.as('awaits_compute'),
    ])
    .where(sql<boolean>`servers.id = any(${[...ids]})`)
    .orderBy('servers.id')
}

/** Rows as JSON, in which a time is text. */
function jsonRows<Table extends keyof Tables, Column extends keyof Selectable<Tables[Table]>>(
  rows: RawBuilder<unknown>,
) {
  return sql<Pick<Selectable<Tables[Table]>, Column>[]>`(select coalesce(json_agg(one), '[]') from (${rows}) as one)`
}

type Row = InferResult<ReturnType<typeof selectServers>>[number]

/** A record as a publisher takes it: without what the store or the schema fills in. */
function composeRecord(row: Row) {
  const { id } = row
  return {
    schema: SCHEMA,
    revision: row.revision,
    id,
    incarnation: row.incarnation,
    fqdn: `${id}.${row.domain}`,
    account: row.account_id,
    serverType: { id: row.server_type_id, handle: row.type_handle },
    image: row.image_id,
    zone: { id: row.zone_id, handle: row.zone_handle },
    architecture: row.architecture,
    launchTime: row.created_at.toISOString(),
    region: row.region_name,
    interfaces: row.interfaces.map((one, i) => ({
      id: one.id,
      macAddress: one.mac_address,
      ipv4Addresses: [
        one.ipv4_prefix_length === null ? one.ipv4_address : `${one.ipv4_address}/${one.ipv4_prefix_length}`,
      ],
      // Without a prefix length: router advertisements configure it (metadata/network-config.ts).
      ...(one.ipv6_address !== null && { ipv6Addresses: [one.ipv6_address] }),
      ...(one.ipv6_prefix !== null && { ipv6Prefixes: [one.ipv6_prefix] }),
      // A cloud IP of a server group is on the first interface of each member.
      cloudIps: row.cloud_ips
        .filter(({ interface_id }) => interface_id === one.id || (interface_id === null && i === 0))
        .map(({ id: cloudIp, public_ipv4, public_ipv6 }) => ({
          id: cloudIp,
          publicIpv4: public_ipv4,
          publicIpv6: public_ipv6,
          fqdn: cloudIpFqdn(row.domain, public_ipv4),
        })),
    })),
    serverGroups: row.groups.map(({ id: group, name }) => ({ id: group, name: name === '' ? group : name })),
    publicKeys: row.keys.map(({ user_id, key: lines }) => {
      const [key, ...moreKeys] = lines.split('\n')
      return { user: user_id, key: key!, ...(moreKeys.length > 0 && { moreKeys }) }
    }),
    ...(row.metadata_options !== null && { options: recordOptions(completeOptions({}, row.metadata_options)) }),
    ...(Object.keys(row.tags).length > 0 && { tags: row.tags }),
    ...(row.events.length > 0 && { events: row.events }),
    ...(row.sealed_at !== null && { sealedAt: row.sealed_at.toISOString() }),
    hypervisors: [row.hypervisor, ...(row.migrating_to === null ? [] : [row.migrating_to])],
  }
}

function composeRow(row: Row): Composed {
  return {
    id: row.id,
    status: row.status,
    awaitsCompute: row.awaits_compute,
    isPublished: row.is_published,
    revision: row.revision,
    fault: row.publish_fault,
    record: composeRecord(row),
    userData: row.user_data === null ? undefined : decodeUserData(row.user_data),
  }
}
