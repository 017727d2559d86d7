/**
 * The resources of the interface, a row each, in the order of the sections of the OpenAPI document. Ids, URLs, texts of
 * errors, most limits of accounts, sections, lists and waits follow from it (ids.ts, account-limits.ts,
 * resources/kit/table.ts). What is special of a resource is in its own files in changes/ and resources/.
 */

/**
 * The limit `TABLE_limit` of an account. `default`: undefined, the region file has to set it, and the account shows it.
 * `minimum`: its lowest value, default 0. `maximum`: its highest. `of`: what it counts, in words; default: the kind in the
 * plural. `counted`: the SQL condition of the rows that count; default: `present`. `remedy`: what to do beyond it.
 */
export interface ResourceLimit {
  readonly default?: number
  readonly minimum?: number
  readonly maximum?: number
  readonly of?: string
  readonly counted?: string
  readonly remedy?: string
}

/**
 * `kind`: in words. `about`: what its section of the document says. `table`: of its rows. `path`: of its collection,
 * without a slash at its ends; default: the table. `tag`: its section, if that is not its own. `example`: an id or
 * handle that the demo's region has; default: the first id that is given. `givesIds`: this program gives its ids.
 * `states`: those that it shows, and that a request can wait for. `present`: a condition of the rows that lists show,
 * the others are deleted; default: all. `isOfRegion`: every account sees all, and it
 * has no events. `unimplemented`: all requests for it, or those that change it.
 */
export interface ResourceRow {
  readonly prefix: string
  readonly kind: string
  readonly about?: string
  readonly table?: string
  readonly path?: string
  readonly tag?: string
  readonly example?: string
  readonly hasHandle?: true
  readonly givesIds?: true
  readonly states?: readonly string[]
  readonly present?: string
  readonly limit?: ResourceLimit
  readonly isOfRegion?: true
  readonly unimplemented?: 'all' | 'changes'
}

export const ROWS = {
  server: {
    prefix: 'srv',
    kind: 'server',
    about: 'Virtual machines, which guests know as instances.',
    table: 'servers',
    givesIds: true,
    states: ['creating', 'active', 'inactive', 'deleting', 'deleted', 'failed', 'unavailable'],
    present: 'servers.deleted_at is null',
  },
  interface: {
    prefix: 'int',
    kind: 'interface',
    about: 'The network interfaces of servers.',
    table: 'interfaces',
    givesIds: true,
  },
  serverGroup: {
    prefix: 'grp',
    kind: 'server group',
    about: 'Sets of servers, which guests see as security groups.',
    table: 'server_groups',
    givesIds: true,
    limit: { default: 256, minimum: 1, of: 'server groups, with the default one' },
  },
  cloudIp: {
    prefix: 'cip',
    kind: 'cloud IP',
    about: 'Public addresses that an account can move between servers.',
    table: 'cloud_ips',
    givesIds: true,
    states: ['unmapped', 'reserved', 'mapped'],
    limit: {},
  },
  /** A deleted image does not exist for clients. The region file may give an image any other state. */
  image: {
    prefix: 'img',
    kind: 'image',
    about: 'Disks from which servers are made.',
    table: 'images',
    hasHandle: true,
    givesIds: true,
    states: ['creating', 'available', 'deprecated', 'failed', 'deleting'],
    present: `images.status <> 'deleted'`,
    limit: {
      default: 50,
      maximum: 5_000, // a list of servers shows the snapshots of each: PostgreSQL has 4 KB for each of them
      of: 'images of the account: its snapshots, and its images of the region file; at most 5,000',
    },
  },
  /**
   * The default type of a new server is an available one. A request may name an experimental one, but not a deprecated
   * one.
   */
  serverType: {
    prefix: 'typ',
    kind: 'server type',
    about: 'Sizes of servers.',
    table: 'server_types',
    example: '1gb.ssd',
    hasHandle: true,
    states: ['experimental', 'available', 'deprecated'],
    present: 'server_types.removed_at is null',
    isOfRegion: true,
  },
  zone: {
    prefix: 'zon',
    kind: 'zone',
    about: 'Places of a region.',
    table: 'zones',
    example: 'gb1-a',
    hasHandle: true,
    present: 'zones.removed_at is null',
    isOfRegion: true,
  },
  /** The region file makes them and sets their states. Failing and failed ones are not available for use. */
  databaseServer: {
    prefix: 'dbs',
    kind: 'database server',
    about: 'Databases that the region runs for the account.',
    table: 'database_servers',
    states: ['creating', 'active', 'deleting', 'deleted', 'failing', 'failed'],
    present: 'database_servers.deleted_at is null',
    unimplemented: 'changes',
  },
  databaseType: {
    prefix: 'dbt',
    kind: 'database type',
    table: 'database_server_types',
    path: 'database_types',
    tag: 'Database servers',
    isOfRegion: true,
    unimplemented: 'changes',
  },
  configMap: {
    prefix: 'cfg',
    kind: 'config map',
    about: 'JSON of any content, with a name.',
    table: 'config_maps',
    givesIds: true,
    limit: { default: 100 },
  },
  account: {
    prefix: 'acc',
    kind: 'account',
    about: 'Who owns resources, and their limits.',
    table: 'accounts',
    states: ['pending', 'active', 'overdue', 'warning', 'suspended', 'terminated', 'closed', 'deleted'],
  },
  user: {
    prefix: 'usr',
    kind: 'user',
    about: 'People who own accounts or work for them.',
    table: 'users',
  },
  apiClient: {
    prefix: 'cli',
    kind: 'API client',
    about: 'Programs that act for an account.',
    table: 'api_clients',
    givesIds: true,
    present: 'api_clients.revoked_at is null',
    limit: { default: 100 },
  },
  application: {
    prefix: 'app',
    kind: 'application',
    about: 'Programs with which users sign in.',
    table: 'applications',
    givesIds: true,
    present: 'applications.revoked_at is null',
    limit: { default: 50 },
  },
  collaboration: {
    prefix: 'col',
    kind: 'collaboration',
    about: 'The access of users to the accounts of others.',
    table: 'collaborations',
    givesIds: true,
    states: ['pending', 'accepted', 'rejected', 'cancelled', 'ended'],
    limit: {
      default: 100,
      of: 'collaborations that are pending or accepted',
      counted: `collaborations.status in ('pending', 'accepted')`,
      remedy: 'end or cancel one first',
    },
  },
  databaseSnapshot: { prefix: 'dbi', kind: 'database snapshot', path: 'database_snapshots', unimplemented: 'all' },
  firewallPolicy: { prefix: 'fwp', kind: 'firewall policy', path: 'firewall_policies', unimplemented: 'all' },
  firewallRule: { prefix: 'fwr', kind: 'firewall rule', path: 'firewall_rules', unimplemented: 'all' },
  loadBalancer: { prefix: 'lba', kind: 'load balancer', path: 'load_balancers', unimplemented: 'all' },
  volume: { prefix: 'vol', kind: 'volume', path: 'volumes', unimplemented: 'all' },
} as const satisfies Readonly<Record<string, ResourceRow>>

type Row = (typeof ROWS)[keyof typeof ROWS]
/** What an id identifies, in the words of error texts. */
export type Kind = Row['kind']
/** The prefixes of the ids that this program gives. */
export type Prefix = Extract<Row, { readonly givesIds: true }>['prefix']
type LimitOf<One> = One extends { readonly table: string; readonly limit: ResourceLimit }
  ? `${One['table']}_limit`
  : never
/** The limits of accounts that count rows of a resource. */
export type ResourceLimitName = LimitOf<Row>
/** Those among them that have a default. */
export type DefaultLimitName = LimitOf<Extract<Row, { readonly limit: { readonly default: number } }>>

/** `name`: that of the row. `type`: the `resource_type`. `plural`: its kind in the plural. */
export interface NamedRow extends ResourceRow {
  readonly name: keyof typeof ROWS
  readonly kind: Kind
  readonly type: string
  readonly plural: string
  readonly tag: string
}
export const ALL_ROWS: readonly NamedRow[] = Object.entries<ResourceRow>(ROWS).map(([name, row]) => {
  const plural = `${row.kind}s`
  return {
    tag: `${plural.charAt(0).toUpperCase()}${plural.slice(1)}`,
    ...row,
    name: name as keyof typeof ROWS,
    kind: row.kind as Kind,
    type: row.kind.toLowerCase().replaceAll(' ', '_'),
    plural,
  }
})

/** `a server`, `an image`. */
export function withArticle(kind: string): string {
  return `${/^[aeio]/i.test(kind) ? 'an' : 'a'} ${kind}`
}

export type CloudIpStatus = (typeof ROWS.cloudIp.states)[number]
export type DatabaseServerStatus = (typeof ROWS.databaseServer.states)[number]
export type ServerTypeStatus = (typeof ROWS.serverType.states)[number]
