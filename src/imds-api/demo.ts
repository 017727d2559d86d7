/**
 * The demo of imds-api in `npm start`: a region with one account, whose servers have addresses of this host's loopback
 * interface. So curl can be the guest of each: `curl --interface 127.0.0.2`. Everything is in a temporary directory and
 * gone at the end.
 */
import { digest } from './auth/secrets.ts'
import type { VariableFault } from '../runtime/variables.ts'
import { parseApiConfig } from './service/config.ts'
import { migrate } from './database/migrate.ts'
import { openDatabase } from './database/open.ts'
import { inTransaction } from './database/transaction.ts'
import { formatId } from './model/ids.ts'
import { applyRegion } from './region/apply.ts'
import type { RegionFile } from './region/schema.ts'
import type { RegionSecrets } from './region/secrets.ts'

/**
 * The credentials are public, so that the printed lines are the same in each run. The demo listens on loopback
 * addresses only.
 */
const CLIENT = { id: 'cli-demo1', secret: 'demo-secret' }

/** The region of the demo. The examples of the OpenAPI document name what it has. */
export const REGION: RegionFile = {
  name: 'gb1',
  domain: 'gb1.example.com',
  zones: [{ id: 'zon-remk1', handle: 'gb1-a' }],
  server_types: [
    { id: 'typ-zx45f', handle: '1gb.ssd', name: 'Small SSD', cores: 1, ram: 1024, disk_size: 30_720 },
    { id: 'typ-8fych', handle: '2gb.ssd', name: 'Medium SSD', cores: 2, ram: 2048, disk_size: 61_440 },
  ],
  database_server_types: [{ id: 'dbt-demo1', name: 'Small', description: 'Small', ram: 2048, disk_size: 81_920 }],
  images: [
    {
      id: 'img-4ltjf',
      handle: 'debian-12',
      name: 'Debian 12',
      username: 'debian',
      disk_size: 2048,
      virtual_size: 10_240,
    },
  ],
  hypervisors: [{ name: 'demo', zone: 'gb1-a', ram: 262_144 }],
  address_pools: {
    mac: ['02:24:19:01:00:00/32'],
    private_ipv4: ['127.0.0.2-127.0.0.254'],
    public_ipv4: ['203.0.113.0/24'],
    public_ipv6: ['2001:db8:1::/64'],
  },
  users: [
    {
      id: 'usr-demo1',
      name: 'Ada Lovelace',
      email_address: 'ada@example.com',
      ssh_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example',
    },
  ],
  accounts: [
    {
      id: 'acc-demo1',
      name: 'Demo',
      owner: 'usr-demo1',
      country_code: 'GB',
      telephone_number: '+442079460000',
      ram_limit: 65_536,
      cloud_ips_limit: 16,
    },
  ],
  database_servers: [
    {
      id: 'dbs-demo1',
      account: 'acc-demo1',
      name: 'orders',
      database_engine: 'mysql',
      database_version: '8.0',
      database_server_type: 'dbt-demo1',
      maintenance_weekday: 0,
      maintenance_hour: 6,
      zone: 'gb1-a',
    },
  ],
  api_clients: [{ id: CLIENT.id, account: 'acc-demo1', name: 'Demo', secret_file: 'demo.secret' }],
}

const SECRETS: RegionSecrets = {
  digests: new Map([[CLIENT.id, digest(CLIENT.secret)]]),
  passwords: new Map(),
  totpSecrets: new Map(),
}

/** The environment of the demo's imds-api. `database`: the URL of its own, whatever `env` names. */
export function demoEnvironment(
  env: Readonly<Record<string, string | undefined>>,
  database: string,
): Readonly<Record<string, string | undefined>> {
  return {
    ...env,
    IMDS_REGION: REGION.name,
    IMDS_API_DATABASE: database,
  }
}

/** Makes the database and applies the demo's region to it. Returns the faults of the environment. */
export async function prepareDatabase(
  env: Readonly<Record<string, string | undefined>>,
): Promise<readonly VariableFault[]> {
  const parsed = parseApiConfig(env)
  if (!parsed.ok) return parsed.faults
  const database = await openDatabase(parsed.value.database, true, (error) => console.error(error.message))
  await migrate(database.db)
  await inTransaction(database.db, (tx) => applyRegion(tx, { file: REGION, removed: {} }, SECRETS))
  await database.close()
  return []
}

/** The lines to try: the ids and addresses are those of the first server and cloud IP. `api` and `guest`: HOST:PORT. */
export function tryLines(api: string, guest: string): readonly string[] {
  const [base, json, asGuest] = [
    `http://${api}/1.0`,
    '-H "$auth" -H \'Content-Type: application/json\'',
    `curl -fs --retry 5 --retry-all-errors --interface 127.0.0.2 http://${guest}/latest`,
  ]
  return [
    'imds-api creates servers. Get a token, create a server, and read as its guest:',
    `  auth="Authorization: Bearer $(curl -s -u ${CLIENT.id}:${CLIENT.secret} -d grant_type=client_credentials http://${api}/token | sed 's/.*"access_token":"//; s/".*//')"`,
    `  curl -s ${json} -d '{"image": "debian-12", "name": "web", "user_data": "'$(echo 'hello, guest' | base64)'"}' ${base}/servers; echo`,
    `  ${asGuest}/user-data`,
    'Map a cloud IP to it, and read its address as the guest:',
    `  curl -s -H "$auth" -X POST ${base}/cloud_ips; echo`,
    `  curl -s ${json} -d '{"destination": "${formatId('int', 1)}"}' ${base}/cloud_ips/${formatId('cip', 1)}/map; echo`,
    `  ${asGuest}/meta-data/public-ipv4; echo`,
    `Every endpoint, in a browser: http://${api}/docs (Authorize: ${CLIENT.id}, ${CLIENT.secret})`,
  ]
}
