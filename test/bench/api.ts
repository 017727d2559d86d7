/**
 * imds-api as the measured server, on a PostgreSQL of its own. It shares a core with nothing else; PostgreSQL is on the
 * other core, with the clients.
 */
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startPostgres } from '../../src/postgres.ts'
import { freePort } from '../support/redis/redis.ts'
import { until } from '../support/programs/daemon.ts'
import { API_FLAGS, startProcess, type Built, type Server } from './processes.ts'

const ROOT = new URL('../../', import.meta.url).pathname
/** Hypervisors that get no servers by themselves: other0, other1 and so on. */
const OTHER_HYPERVISORS = 100
const [CLIENT, SECRET] = ['cli-bench', 'a-secret-for-the-benchmark']
/** API clients of accounts of their own. */
export const CALLERS: readonly string[] = Array.from({ length: 101 }, (_, i) => `cli-c${String(i).padStart(4, '0')}`)

/** A started imds-api with one account. */
export interface BenchApi extends Server {
  call(method: string, path: string, body?: object): Promise<Record<string, unknown>>
  readonly token: string
  /** Gets a token for one of CALLERS. */
  tokenOf(caller: string): Promise<string>
}

/** Starts imds-api with an empty region. `main`: its entry; by default from its sources. */
export async function startBenchApi(
  built: Built,
  region: string,
  redisUrl: string,
  main = join(ROOT, 'src/imds-api/main.ts'),
): Promise<BenchApi> {
  const directory = join(built.directory, region)
  mkdirSync(directory, { recursive: true })
  chmodSync(built.directory, 0o711)
  chmodSync(directory, 0o711)
  const postgres = await startPostgres(join(directory, 'postgres'))
  const port = await freePort()
  const env = {
    IMDS_API_LISTEN: `127.0.0.1:${port}`,
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
    IMDS_API_DATABASE: postgres.url,
    IMDS_STORE: redisUrl,
    IMDS_REGION: region,
  }
  writeFileSync(join(directory, 'secret'), SECRET)
  writeFileSync(join(directory, 'region.yaml'), JSON.stringify({ ...REGION, name: region }))
  execFileSync(process.execPath, [main, 'apply', join(directory, 'region.yaml')], {
    env: { PATH: process.env['PATH'], ...env },
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const server = startProcess([main], env, 'ignore', API_FLAGS)
  const base = `http://127.0.0.1:${port}`
  await until(
    () =>
      fetch(`${base}/1.0/openapi.json`).then(
        ({ ok }) => ok,
        () => false,
      ),
    'imds-api to answer',
  )
  const tokenOf = async (client: string) => {
    const response = await fetch(`${base}/token`, {
      method: 'POST',
      headers: { Authorization: basic(client) },
      body: new URLSearchParams({ grant_type: 'client_credentials' }),
    })
    return ((await response.json()) as { access_token: string }).access_token
  }
  const token = await tokenOf(CLIENT)
  return {
    ...server,
    stop: async () => {
      await server.stop()
      await postgres.stop()
    },
    port,
    token,
    tokenOf,
    call: async (method, path, body) => {
      const response = await fetch(base + path, {
        method,
        headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
        ...(body && { body: JSON.stringify(body) }),
      })
      const answer = (await response.json()) as Record<string, unknown>
      if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${JSON.stringify(answer)}`)
      return answer
    },
  }
}

function basic(client: string): string {
  return `Basic ${Buffer.from(`${client}:${SECRET}`).toString('base64')}`
}

const REGION = {
  domain: 'bench.example.com',
  zones: [{ id: 'zon-bench', handle: 'bench-a' }],
  server_types: [{ id: 'typ-bench', handle: '1gb.ssd', name: 'Bench', cores: 1, ram: 1024, disk_size: 1024 }],
  database_server_types: [{ id: 'dbt-bench', name: 'Bench', disk_size: 1, ram: 1 }],
  images: [{ id: 'img-bench', handle: 'debian-12', name: 'Debian 12', disk_size: 1024, virtual_size: 1024 }],
  hypervisors: [
    { name: 'hv1', zone: 'bench-a', ram: 1_000_000_000 },
    ...Array.from({ length: OTHER_HYPERVISORS }, (_, i) => ({ name: `other${i}`, zone: 'bench-a', ram: 1 })),
  ],
  address_pools: {
    mac: ['02:24:19:00:00:00/24'],
    private_ipv4: ['127.0.1.1-127.0.250.254'],
    public_ipv4: ['203.0.113.0/24'],
    public_ipv6: ['2001:db8::/64'],
  },
  users: [
    { id: 'usr-bench', name: 'Bench', email_address: 'bench@example.com' },
    ...CALLERS.map((client) => ({
      id: client.replace('cli', 'usr'),
      name: client,
      email_address: `${client}@example.com`,
    })),
  ],
  accounts: [
    {
      id: 'acc-bench',
      name: 'Bench',
      owner: 'usr-bench',
      country_code: 'GB',
      telephone_number: '+442079460000',
      ram_limit: 1_000_000_000,
      cloud_ips_limit: 100,
    },
    ...CALLERS.map((client) => ({
      id: client.replace('cli', 'acc'),
      name: client,
      owner: client.replace('cli', 'usr'),
      country_code: 'GB',
      telephone_number: '+442079460000',
      ram_limit: 1_000_000,
      cloud_ips_limit: 100,
    })),
  ],
  api_clients: [
    { id: CLIENT, account: 'acc-bench', name: 'Bench', secret_file: 'secret' },
    ...CALLERS.map((client) => ({
      id: client,
      account: client.replace('cli', 'acc'),
      name: client,
      secret_file: 'secret',
    })),
  ],
}
