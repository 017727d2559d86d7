/** Who sends requests to the fuzzed API, and the resources that the accounts have at first. */
import type { Database } from '../../../src/imds-api/database/open.ts'
import { secretOf } from '../../support/fixtures/region.ts'
import { basic, type TestImdsApi } from '../../support/programs/api.ts'
import {
  ACCOUNTS,
  APPLICATION,
  COMMON,
  INVITED,
  ONE,
  OTHER_CLIENTS,
  TOKEN_APPLICATION,
  TOKEN_CLIENT,
  TWO,
  type Account,
} from './region.ts'

/** Who sends requests. */
export interface Identity {
  readonly name: string
  /** The access token; undefined: none. */
  readonly token: string | undefined
  /** Whose data it may see. */
  readonly account: Account | undefined
  /** Who made the changes, in their events. */
  readonly actor: string
  readonly isUser: boolean
  /** What it may do, or the status of each of its requests. */
  readonly may: 'change' | 'read' | 401 | 403
}

/**
 * Identities whose requests are sent one after the other, and what their responses had: ids of resources, the newest
 * last, and parts of their headers.
 */
export interface Lane {
  readonly identities: readonly Identity[]
  readonly account: Account
  readonly ids: Set<string>
  readonly cursors: string[]
  readonly tags: string[]
}

/** The clients and applications that the identities need. */
const CREDENTIALS = [
  ...ACCOUNTS.map(({ client }) => client),
  ...Object.values(OTHER_CLIENTS),
  ...[APPLICATION, TOKEN_APPLICATION, TOKEN_CLIENT],
]

/** Makes resources of each kind in an account, with its marker in each text. Returns their ids. */
export async function plant(api: TestImdsApi, account: Account): Promise<readonly string[]> {
  const { id, marker, client } = account
  const token = await api.token(client)
  const ids = new Set([id, ...['img', 'dbs', 'usr'].map((prefix) => id.replace('acc', prefix))])
  const call = async (method: string, path: string, body: object) => {
    const response = await fetch(`${api.baseUrl}/1.0/${path}`, {
      method,
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${text}`)
    for (const one of idsIn(text)) ids.add(one)
  }
  for (const n of ['0', '1']) {
    const name = `${marker} ${n}`
    await call('POST', 'server_groups', { name, description: marker })
    await call('POST', 'cloud_ips', { name, reverse_dns: `${marker}.example.net` })
    await call('POST', 'config_maps', { name, data: { [marker]: marker } })
    await call('POST', 'api_clients', { name, description: marker })
    await call('POST', 'applications', { name, description: marker })
    await call('POST', 'collaborations', { email: `${n}@${marker}.example.net`, role: 'admin' })
    await call('POST', 'servers', {
      name,
      image: 'img-deb12',
      user_data: marker,
      tags: { [marker]: marker },
      cloud_ip: true,
    })
  }
  return [...ids]
}

/** The ids of resources in a text that requests may change: not those that the identities need. */
export function idsIn(text: string): readonly string[] {
  const ids = text.match(/\b(?:acc|app|cfg|cip|cli|col|dbs|grp|img|int|srv|usr)-[0-9a-z]{5,6}\b/g) ?? []
  return ids.filter((id) => !COMMON.includes(id) && !CREDENTIALS.includes(id))
}

/** Signs everybody in. `ids`: those of each account. */
export async function buildLanes(
  api: TestImdsApi,
  { pool }: Database,
  ids: readonly (readonly string[])[],
): Promise<Lane[]> {
  const { readOnly, storage, revoked, expired } = OTHER_CLIENTS
  const client = async (name: string, account: Account | undefined, id: string, may: Identity['may']) => ({
    ...{ name, account, actor: id, isUser: false, may },
    token: await api.token(id),
  })
  const user = async (name: string, account: Account, id: string): Promise<Identity> => ({
    ...{ name, account, actor: id, isUser: true, may: 'change' },
    token: await signIn(api, id),
  })
  const lanes = [
    {
      account: ONE,
      identities: [
        await client('client', ONE, ONE.client, 'change'),
        await user('user', ONE, ONE.owner),
        await user('invited user', ONE, INVITED),
      ],
    },
    {
      account: TWO,
      identities: [
        await client('client of another account', TWO, TWO.client, 'change'),
        await user('user of another account', TWO, TWO.owner),
      ],
    },
    {
      account: ONE,
      identities: [
        await client('read-only client', ONE, readOnly, 'read'),
        await client('storage client', undefined, storage, 403),
        await client('revoked client', undefined, revoked, 401),
        await client('expired token', undefined, expired, 401),
        { name: 'nobody', token: undefined, account: undefined, actor: '', isUser: false, may: 401 as const },
      ],
    },
  ]
  await pool.query('update api_clients set read_only = true where id = $1', [readOnly])
  await pool.query('update api_clients set revoked_at = now() where id = $1', [revoked])
  await pool.query('update access_tokens set expires_at = now() where client_id = $1', [expired])
  return lanes.map((lane) => ({
    ...lane,
    cursors: [],
    tags: [],
    ids: new Set(ids[ACCOUNTS.findIndex(({ id }) => id === lane.account.id)]),
  }))
}

/** Gets an access token for a user. */
async function signIn({ baseUrl }: TestImdsApi, user: string): Promise<string> {
  const response = await fetch(`${baseUrl}/token`, {
    method: 'POST',
    headers: { Authorization: basic(APPLICATION) },
    body: new URLSearchParams({ grant_type: 'password', username: user, password: secretOf(user) }),
  })
  return ((await response.json()) as { access_token: string }).access_token
}
