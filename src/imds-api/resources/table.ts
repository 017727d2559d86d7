/**
 * The resources of the interface, a row each. Their URLs, forms, ids of operations and texts in the OpenAPI document
 * follow from it. model/ids.ts has the words for the kind of each prefix; what is special is in a resource's own file.
 */
import Type from 'typebox'
import type { Tables } from '../database/tables.ts'
import { formatId, KINDS, PREFIXES, type Kind } from '../model/ids.ts'

/**
 * `table`: of its rows. `path`: of its collection, without a slash at its ends. `tag`: its section of the document.
 * `example`: an id or handle that the demo's region has, at least once the first such resource is created.
 */
interface Row<Name extends string, Table extends keyof Tables> {
  readonly prefix: keyof typeof KINDS
  readonly type: Name
  readonly table: Table
  readonly path?: string
  readonly tag?: string
  readonly example?: string
  readonly hasHandle?: boolean
}

/**
 * What follows from a row. `type`: its `resource_type`. `noun`: its kind with an article. `plural`: its kind in the
 * plural. `name`: in the ids of operations and the titles of schemas. `params`: of the path of a member.
 */
export interface Resource<Name extends string = string, Table extends keyof Tables = keyof Tables> {
  readonly kind: Kind
  readonly type: Name
  readonly table: Table
  readonly path: string
  readonly tags: readonly string[]
  readonly noun: string
  readonly plural: string
  readonly name: string
  readonly params: ReturnType<typeof idParams>
}

export const RESOURCES = {
  account: resource({ prefix: 'acc', type: 'account', table: 'accounts' }),
  apiClient: resource({ prefix: 'cli', type: 'api_client', table: 'api_clients' }),
  application: resource({ prefix: 'app', type: 'application', table: 'applications' }),
  cloudIp: resource({ prefix: 'cip', type: 'cloud_ip', table: 'cloud_ips' }),
  collaboration: resource({ prefix: 'col', type: 'collaboration', table: 'collaborations' }),
  configMap: resource({ prefix: 'cfg', type: 'config_map', table: 'config_maps' }),
  databaseServer: resource({ prefix: 'dbs', type: 'database_server', table: 'database_servers' }),
  databaseType: resource({
    ...{ prefix: 'dbt', type: 'database_type', table: 'database_server_types' },
    ...{ path: 'database_types', tag: 'Database servers' },
  }),
  image: resource({ prefix: 'img', type: 'image', table: 'images', hasHandle: true }),
  interface: resource({ prefix: 'int', type: 'interface', table: 'interfaces' }),
  server: resource({ prefix: 'srv', type: 'server', table: 'servers' }),
  serverGroup: resource({ prefix: 'grp', type: 'server_group', table: 'server_groups' }),
  serverType: resource({
    ...{ prefix: 'typ', type: 'server_type', table: 'server_types' },
    ...{ example: '1gb.ssd', hasHandle: true },
  }),
  user: resource({ prefix: 'usr', type: 'user', table: 'users' }),
  /** The side of the user who is invited. */
  userCollaboration: resource({
    ...{ prefix: 'col', type: 'collaboration', table: 'collaborations' },
    path: 'user/collaborations',
  }),
  zone: resource({ prefix: 'zon', type: 'zone', table: 'zones', example: 'gb1-a', hasHandle: true }),
} as const

function resource<const Name extends string, const Table extends keyof Tables>({
  prefix,
  type,
  table,
  path = table,
  tag = `${KINDS[prefix].charAt(0).toUpperCase()}${KINDS[prefix].slice(1)}s`,
  example = PREFIXES.some((one) => one === prefix) ? formatId(prefix, 1) : `${prefix}-demo1`,
  hasHandle = false,
}: Row<Name, Table>): Resource<Name, Table> {
  const kind = KINDS[prefix]
  return {
    ...{ kind, type, table, path },
    tags: [tag],
    noun: `${/^[aeio]/i.test(kind) ? 'an' : 'a'} ${kind}`,
    plural: `${kind}s`,
    name: path.replaceAll(/(?:^|[/_])(.)/g, (_, first: string) => first.toUpperCase()).slice(0, -1),
    params: idParams(example, hasHandle ? 'The id, or the handle.' : 'The id.'),
  }
}

function idParams(example: string, description: string) {
  return Type.Object({ id: Type.String({ description, examples: [example] }) })
}
