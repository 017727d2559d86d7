/**
 * imds-api: its rates beside a bare route that reads one row. outbox.ts has the time from a change to the guest.
 *
 * The API runs as it is installed, on its embedded PostgreSQL, and publishes to Redis. It shares a core with nothing else;
 * PostgreSQL is on the other core, with wrk.
 */
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { freePort } from '../support/redis/redis.ts'
import { request, until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { API_FLAGS, advanceDatabase, residentMib, startProcess, type Built, type Server } from './processes.ts'
import type { Table } from './report.ts'
import { medianOf, ratio, takeTurns, type Effort } from './rounds.ts'

const ROOT = new URL('../../', import.meta.url).pathname
/** Hypervisors that get no servers by themselves: other0, other1 and so on. */
export const OTHER_HYPERVISORS = 100
const [CLIENT, SECRET] = ['cli-bench', 'a-secret-for-the-benchmark']
/** API clients of accounts of their own. */
export const CALLERS: readonly string[] = Array.from({ length: 101 }, (_, i) => `cli-c${String(i).padStart(4, '0')}`)

/** A started imds-api with one account. `socket`: the directory of PostgreSQL's. */
export interface BenchApi extends Server {
  readonly stateDirectory: string
  readonly socket: string
  call(method: string, path: string, body?: object): Promise<Record<string, unknown>>
  readonly token: string
  /** Gets a token for one of CALLERS. */
  tokenOf(caller: string): Promise<string>
}

/** Rates and memory of imds-api. */
export const api: Part = async ({ built, redisUrl, effort }) => {
  const imdsApi = await startBenchApi(built, 'bench-api', redisUrl, join(built.directory, 'dist/api.js'))
  try {
    return [await rates(built, imdsApi, effort), memory(imdsApi)]
  } finally {
    await imdsApi.stop()
  }
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
  const port = await freePort()
  const env = {
    IMDS_API_LISTEN: `127.0.0.1:${port}`,
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
    IMDS_API_DATABASE: 'embedded',
    IMDS_API_STATE_DIR: join(directory, 'state'),
    IMDS_STORE: redisUrl,
    IMDS_REGION: region,
    IMDS_API_AUDIT_FILE: join(directory, 'audit'),
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
  await advanceDatabase(join(directory, 'state'))
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
    port,
    token,
    tokenOf,
    stateDirectory: join(directory, 'state'),
    socket: join(directory, 'state', 'postgres'),
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

/** GET of a cloud IP beside the bare route, and the token endpoint. */
async function rates(built: Built, imdsApi: BenchApi, effort: Effort): Promise<Table> {
  const { id } = (await imdsApi.call('POST', '/1.0/cloud_ips')) as { id: string }
  const port = await freePort()
  const entry = join(ROOT, 'test/bench/bare-api.ts')
  const bare = {
    ...startProcess([entry, String(port), imdsApi.socket, 'cloud_ips', id], {}, 'ignore'),
    port,
  }
  const lua = join(built.directory, 'token.lua')
  writeFileSync(
    lua,
    `wrk.method = "POST"\nwrk.body = "grant_type=client_credentials"\nwrk.headers["Content-Type"] = "application/x-www-form-urlencoded"\nwrk.headers["Authorization"] = "${basic(CLIENT)}"\n`,
  )
  try {
    await until(
      () =>
        request(port, '/').then(
          () => true,
          () => false,
        ),
      'the bare route',
    )
    const header = ['-H', `Authorization: Bearer ${imdsApi.token}`]
    const [bareRounds = []] = await takeTurns([bare], '/', 'keep-alive', effort)
    const [getRounds = []] = await takeTurns([imdsApi], `/1.0/cloud_ips/${id}`, 'keep-alive', effort, header)
    const [tokenRounds = []] = await takeTurns([imdsApi], '/token', 'keep-alive', effort, ['-s', lua])
    const perSecond = (rounds: typeof bareRounds) => medianOf(rounds, 'requestsPerSecond').toFixed(0)
    return {
      title: 'imds-api: rates, keep-alive',
      columns: ['', 'requests/s', 'ratio to bare', 'aim', 'p99 ms'],
      rows: [
        [
          'a bare route with one SELECT by primary key',
          perSecond(bareRounds),
          '1',
          '',
          medianOf(bareRounds, 'p99Ms').toFixed(1),
        ],
        [
          'GET of a cloud IP with a token',
          perSecond(getRounds),
          ratio(getRounds, bareRounds, 'requestsPerSecond').toFixed(2),
          '>= 0.4',
          medianOf(getRounds, 'p99Ms').toFixed(1),
        ],
        [
          'POST /token, client_credentials',
          perSecond(tokenRounds),
          '',
          '>= 300/s',
          medianOf(tokenRounds, 'p99Ms').toFixed(1),
        ],
      ],
      notes: ['PostgreSQL and wrk share the other core.'],
    }
  } finally {
    await bare.stop()
  }
}

function memory({ pid }: BenchApi): Table {
  return {
    title: 'imds-api: memory after the run',
    columns: ['', 'MiB'],
    rows: [['imds-api, resident', residentMib(pid).toFixed(0)]],
    notes: [],
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
