/**
 * The resources of the interface, a row each. Ids, URLs, texts of errors, most limits of accounts, types of events,
 * sections of the OpenAPI document, lists and waits follow from it (ids.ts, account-limits.ts, resources/table.ts). What
 * is special of a resource is in its own files in changes/ and resources/.
 */

/**
 * `default`: of the limit `TABLE_limit` of an account. `minimum`: its lowest value. `of`: what it counts, in words.
 * `counted`: a condition of the rows that count, default those of `present`. `remedy`: what to do beyond it.
 */
export interface ResourceLimit {
  readonly default: number
  readonly minimum: number
  readonly of?: string
  readonly counted?: string
  readonly remedy?: string
}

/**
 * `kind`: in words. `table`: of its rows. `path`: of its collection, without a slash at its ends; default: the table.
 * `tag`: its section of the document; default: its kind in the plural. `example`: an id or handle that the demo's region
 * has; default: the first id that is given. `givesIds`: this program gives its ids. `states`: those that it shows, and
 * that a request can wait for. `present`: a condition of the rows that lists show; default: all. `hasEvents`: a change of
 * one is an event. `unimplemented`: all requests for it, or those that change it.
 */
export interface ResourceRow {
  readonly prefix: string
  readonly kind: string
  readonly table?: string
  readonly path?: string
  readonly tag?: string
  readonly example?: string
  readonly hasHandle?: true
  readonly givesIds?: true
  readonly states?: readonly string[]
  readonly present?: string
  readonly limit?: ResourceLimit
  readonly hasEvents?: true
  readonly unimplemented?: 'all' | 'changes'
}

export const ROWS = {
  account: {
    prefix: 'acc',
    kind: 'account',
    table: 'accounts',
    states: ['pending', 'active', 'overdue', 'warning', 'suspended', 'terminated', 'closed', 'deleted'],
    hasEvents: true,
  },
  apiClient: {
    prefix: 'cli',
    kind: 'API client',
    table: 'api_clients',
    givesIds: true,
    present: 'api_clients.revoked_at is null',
    limit: { default: 100, minimum: 0 },
    hasEvents: true,
  },
  application: {
    prefix: 'app',
    kind: 'application',
    table: 'applications',
    givesIds: true,
    present: 'applications.revoked_at is null',
    limit: { default: 50, minimum: 0 },
    hasEvents: true,
  },
  cloudIp: {
    prefix: 'cip',
    kind: 'cloud IP',
    table: 'cloud_ips',
    givesIds: true,
    states: ['unmapped', 'reserved', 'mapped'],
    hasEvents: true,
  },
  collaboration: {
    prefix: 'col',
    kind: 'collaboration',
    table: 'collaborations',
    givesIds: true,
    states: ['pending', 'accepted', 'rejected', 'cancelled', 'ended'],
    limit: {
      default: 100,
      minimum: 0,
      of: 'collaborations that are pending or accepted',
      counted: `collaborations.status in ('pending', 'accepted')`,
      remedy: 'end or cancel one first',
    },
    hasEvents: true,
  },
  configMap: {
    prefix: 'cfg',
    kind: 'config map',
    table: 'config_maps',
    givesIds: true,
    limit: { default: 100, minimum: 0 },
    hasEvents: true,
  },
  /** The region file makes them and sets their states. Failing and failed ones are not available for use. */
  databaseServer: {
    prefix: 'dbs',
    kind: 'database server',
    table: 'database_servers',
    states: ['creating', 'active', 'deleting', 'deleted', 'failing', 'failed'],
    present: 'database_servers.deleted_at is null',
    hasEvents: true,
    unimplemented: 'changes',
  },
  databaseSnapshot: { prefix: 'dbi', kind: 'database snapshot', path: 'database_snapshots', unimplemented: 'all' },
  databaseType: {
    prefix: 'dbt',
    kind: 'database type',
    table: 'database_server_types',
    path: 'database_types',
    tag: 'Database servers',
    unimplemented: 'changes',
  },
  firewallPolicy: { prefix: 'fwp', kind: 'firewall policy', path: 'firewall_policies', unimplemented: 'all' },
  firewallRule: { prefix: 'fwr', kind: 'firewall rule', path: 'firewall_rules', unimplemented: 'all' },
  /** A deleted image does not exist for clients. The region file may give an image any other state. */
  image: {
    prefix: 'img',
    kind: 'image',
    table: 'images',
    hasHandle: true,
    givesIds: true,
    states: ['creating', 'available', 'deprecated', 'failed', 'deleting'],
    present: `images.status <> 'deleted'`,
    limit: { default: 50, minimum: 0, of: 'images of the account: its snapshots, and its images of the region file' },
    hasEvents: true,
  },
  interface: { prefix: 'int', kind: 'interface', table: 'interfaces', givesIds: true },
  loadBalancer: { prefix: 'lba', kind: 'load balancer', path: 'load_balancers', unimplemented: 'all' },
  server: {
    prefix: 'srv',
    kind: 'server',
    table: 'servers',
    givesIds: true,
    states: ['creating', 'active', 'inactive', 'deleting', 'deleted', 'failed', 'unavailable'],
    present: 'servers.deleted_at is null',
    hasEvents: true,
  },
  serverGroup: {
    prefix: 'grp',
    kind: 'server group',
    table: 'server_groups',
    givesIds: true,
    limit: { default: 256, minimum: 1, of: 'server groups, with the default one' },
    hasEvents: true,
  },
  /**
   * The default type of a new server is an available one. A request may name an experimental one, but not a deprecated
   * one.
   */
  serverType: {
    prefix: 'typ',
    kind: 'server type',
    table: 'server_types',
    example: '1gb.ssd',
    hasHandle: true,
    states: ['experimental', 'available', 'deprecated'],
    present: 'server_types.removed_at is null',
  },
  user: { prefix: 'usr', kind: 'user', table: 'users', hasEvents: true },
  volume: { prefix: 'vol', kind: 'volume', path: 'volumes', unimplemented: 'all' },
  zone: {
    prefix: 'zon',
    kind: 'zone',
    table: 'zones',
    example: 'gb1-a',
    hasHandle: true,
    present: 'zones.removed_at is null',
  },
} as const satisfies Readonly<Record<string, ResourceRow>>

type Row = (typeof ROWS)[keyof typeof ROWS]
/** What an id identifies, in the words of error texts. */
export type Kind = Row['kind']
/** The prefixes of the ids that this program gives. */
export type Prefix = Extract<Row, { readonly givesIds: true }>['prefix']
/** The limits of accounts that count rows of a resource. */
export type ResourceLimitName = `${Extract<Row, { readonly limit: ResourceLimit }>['table']}_limit`

/** `name`: that of the row. `type`: the `resource_type`. */
export interface NamedRow extends ResourceRow {
  readonly name: keyof typeof ROWS
  readonly kind: Kind
  readonly type: string
}
/** All rows. */
export const ALL_ROWS: readonly NamedRow[] = Object.entries<Row>(ROWS).map(([name, row]) => ({
  ...row,
  name: name as keyof typeof ROWS,
  type: row.kind.toLowerCase().replaceAll(' ', '_'),
}))

export type CloudIpStatus = (typeof ROWS.cloudIp.states)[number]
export type DatabaseServerStatus = (typeof ROWS.databaseServer.states)[number]
export type ServerTypeStatus = (typeof ROWS.serverType.states)[number]
