/**
 * imds-api: its rates beside a bare route that reads one row, and the time from a change to the guest.
 *
 * The API runs from its sources on its embedded PostgreSQL and publishes to Redis; the daemon serves guests on
 * 127.0.1.x. Both measured servers share a core with nothing else; PostgreSQL is on the other core, with wrk.
 */
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { freePort } from '../support/redis/redis.ts'
import { request, until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { residentMib, startImds, startProcess, type Built, type Server } from './processes.ts'
import { quantile, type Table } from './report.ts'
import { disturbance, medianOf, ratio, takeTurns, type Effort } from './rounds.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const [CLIENT, SECRET] = ['cli-bench', 'a-secret-for-the-benchmark']
const MAPPINGS = 1_000
const WARM_UP = 50
const GROUP = 500

/** A started imds-api with one account. */
interface BenchApi extends Server {
  readonly stateDirectory: string
  call(method: string, path: string, body?: object): Promise<Record<string, unknown>>
  readonly token: string
}

/** Rates, latencies and memory of imds-api. */
export const api: Part = async ({ built, redisUrl, effort }) => {
  const directory = join(built.directory, 'api')
  mkdirSync(directory, { recursive: true })
  chmodSync(built.directory, 0o711)
  chmodSync(directory, 0o711)
  const imdsApi = await startBenchApi(directory, redisUrl)
  const imds = await startImds(built, { IMDS_STORE: redisUrl, IMDS_REGION: 'bench-api', IMDS_HYPERVISOR: 'hv1' }, 0)
  try {
    const changed = await changes(imdsApi, imds)
    const rated = await rates(built, imdsApi, effort) // last: its tokens push out the one that `changes` uses
    return [rated, changed, memory(imdsApi)]
  } finally {
    await imds.stop()
    await imdsApi.stop()
  }
}

async function startBenchApi(directory: string, redisUrl: string): Promise<BenchApi> {
  const port = await freePort()
  const env = {
    IMDS_API_LISTEN: `127.0.0.1:${String(port)}`,
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
    IMDS_API_DATABASE: 'embedded',
    IMDS_API_STATE_DIR: join(directory, 'state'),
    IMDS_STORE: redisUrl,
    IMDS_REGION: 'bench-api',
    IMDS_API_AUDIT_FILE: join(directory, 'audit'),
  }
  const main = join(ROOT, 'src/api/main.ts')
  writeFileSync(join(directory, 'secret'), SECRET)
  writeFileSync(join(directory, 'region.yaml'), JSON.stringify(REGION))
  execFileSync(process.execPath, [main, 'apply', join(directory, 'region.yaml')], {
    env: { PATH: process.env['PATH'], ...env },
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const server = startProcess([main], env, 'ignore')
  const base = `http://127.0.0.1:${String(port)}`
  await until(
    () =>
      fetch(`${base}/1.0/openapi.json`).then(
        ({ ok }) => ok,
        () => false,
      ),
    'imds-api to answer',
  )
  const { access_token: token } = (await (
    await fetch(`${base}/token`, {
      method: 'POST',
      headers: { Authorization: basic() },
      body: new URLSearchParams({ grant_type: 'client_credentials' }),
    })
  ).json()) as { access_token: string }
  return {
    ...server,
    port,
    token,
    stateDirectory: join(directory, 'state'),
    call: async (method, path, body) => {
      const response = await fetch(base + path, {
        method,
        headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
        ...(body && { body: JSON.stringify(body) }),
      })
      const answer = (await response.json()) as Record<string, unknown>
      if (!response.ok) throw new Error(`${method} ${path}: ${String(response.status)} ${JSON.stringify(answer)}`)
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
    ...startProcess([entry, String(port), join(imdsApi.stateDirectory, 'postgres'), 'cloud_ips', id], {}, 'ignore'),
    port,
  }
  const lua = join(built.directory, 'token.lua')
  writeFileSync(
    lua,
    `wrk.method = "POST"\nwrk.body = "grant_type=client_credentials"\nwrk.headers["Content-Type"] = "application/x-www-form-urlencoded"\nwrk.headers["Authorization"] = "${basic()}"\n`,
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
      columns: ['', 'requests/s', 'ratio to bare', 'aim', 'p99 ms', 'other load'],
      rows: [
        [
          'a bare route with one SELECT by primary key',
          perSecond(bareRounds),
          '1',
          '',
          medianOf(bareRounds, 'p99Ms').toFixed(1),
          disturbance(bareRounds),
        ],
        [
          'GET of a cloud IP with a token',
          perSecond(getRounds),
          ratio(getRounds, bareRounds, 'requestsPerSecond').toFixed(2),
          '>= 0.4',
          medianOf(getRounds, 'p99Ms').toFixed(1),
          disturbance(getRounds),
        ],
        [
          'POST /token, client_credentials',
          perSecond(tokenRounds),
          '',
          '>= 300/s',
          medianOf(tokenRounds, 'p99Ms').toFixed(1),
          disturbance(tokenRounds),
        ],
      ],
      notes: ['PostgreSQL and wrk share the other core, which counts as other load.'],
    }
  } finally {
    await bare.stop()
  }
}

/** From the answer of `map` to the guest's public-ipv4, for one server and for a group. */
async function changes(imdsApi: BenchApi, { port }: { readonly port: number }): Promise<Table> {
  const server = await createServer(imdsApi)
  const read = async (address: string) => {
    const { status, body } = await request(port, '/latest/meta-data/public-ipv4', address)
    return status === 200 ? body.toString() : undefined
  }
  const newCloudIp = async () => (await imdsApi.call('POST', '/1.0/cloud_ips')) as { id: string; public_ipv4: string }
  const cloudIps = [await newCloudIp(), await newCloudIp()] as const
  await until(
    async () => (await request(port, '/latest/meta-data/instance-id', server.address)).status === 200,
    'the first server',
  )
  const times: number[] = []
  // Two cloud IPs take turns: a value that was removed still answers for a minute, so the same one again would be no
  // news.
  for (let n = 0; n < WARM_UP + MAPPINGS; n++) {
    const { id, public_ipv4: ip } = cloudIps[n % 2]!
    await imdsApi.call('POST', `/1.0/cloud_ips/${id}/map`, { destination: server.interface })
    const answeredMs = performance.now()
    while ((await read(server.address)) !== ip) {
      /* ask again */
    }
    if (n >= WARM_UP) times.push(performance.now() - answeredMs)
    await imdsApi.call('POST', `/1.0/cloud_ips/${id}/unmap`)
  }
  const { id, public_ipv4: ip } = await newCloudIp()
  const servers = [server]
  while (servers.length < GROUP) servers.push(await createServer(imdsApi))
  const group = (await imdsApi.call('POST', '/1.0/server_groups', {
    name: 'bench',
    servers: servers.map((one) => ({ server: one.id })),
  })) as { id: string }
  await until(
    async () =>
      (await request(port, '/latest/meta-data/security-groups', servers.at(-1)!.address)).body.includes('bench'),
    'the group',
    120_000,
  )
  await imdsApi.call('POST', `/1.0/cloud_ips/${id}/map`, { destination: group.id })
  const mappedMs = performance.now()
  for (const { address } of servers)
    while ((await read(address)) !== ip) await new Promise((resolve) => setTimeout(resolve, 1))
  const groupMs = performance.now() - mappedMs
  const row = (name: string, values: readonly number[], aim: string) => [
    name,
    quantile(values, 0.5).toFixed(1),
    quantile(values, 0.99).toFixed(1),
    quantile(values, 1).toFixed(1),
    aim,
  ]
  return {
    title: "imds-api: from the answer of map to the guest's public-ipv4",
    columns: ['ms', 'median', 'p99', 'longest', 'aim'],
    rows: [
      row(`one server, ${String(MAPPINGS)} mappings`, times, 'median 15, p99 60'),
      [`a group of ${String(GROUP)} servers, until the last guest sees it`, groupMs.toFixed(0), '', '', ''],
    ],
    notes: [],
  }
}

async function createServer(
  imdsApi: BenchApi,
): Promise<{ readonly id: string; readonly interface: string; readonly address: string }> {
  const {
    id,
    interfaces: [first],
  } = (await imdsApi.call('POST', '/1.0/servers', { image: 'debian-12' })) as {
    id: string
    interfaces: { id: string; ipv4_address: string }[]
  }
  return { id, interface: first!.id, address: first!.ipv4_address }
}

function memory({ pid, stateDirectory }: BenchApi): Table {
  const postmaster = Number(
    readFileSync(join(stateDirectory, 'postgres/data/postmaster.pid'), 'utf8').split('\n', 1)[0],
  )
  const family = readdirSync('/proc')
    .map(Number)
    .filter((one) => one === postmaster || parentOf(one) === postmaster)
  const shared = family.reduce(
    (sum, one) =>
      sum + Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${String(one)}/smaps_rollup`, 'utf8'))?.[1]) / 1024,
    0,
  )
  return {
    title: 'imds-api: memory after the run',
    columns: ['', 'MiB'],
    rows: [
      ['imds-api, resident', residentMib(pid).toFixed(0)],
      [`PostgreSQL, ${String(family.length)} processes, proportional`, shared.toFixed(0)],
    ],
    notes: [],
  }
}

function parentOf(pid: number): number | undefined {
  try {
    return Number(
      readFileSync(`/proc/${String(pid)}/stat`, 'utf8')
        .split(') ')[1]
        ?.split(' ')[1],
    )
  } catch {
    return undefined
  }
}

function basic(): string {
  return `Basic ${Buffer.from(`${CLIENT}:${SECRET}`).toString('base64')}`
}

const REGION = {
  name: 'bench-api',
  domain: 'bench.example.com',
  zones: [{ id: 'zon-bench', handle: 'bench-a' }],
  server_types: [{ id: 'typ-bench', handle: '1gb.ssd', name: 'Bench', cores: 1, ram: 1024, disk_size: 1024 }],
  images: [{ id: 'img-bench', handle: 'debian-12', name: 'Debian 12', disk_size: 1024, virtual_size: 1024 }],
  hypervisors: [{ name: 'hv1', zone: 'bench-a', ram: 1_000_000_000 }],
  address_pools: {
    mac: ['02:24:19:00:00:00/24'],
    private_ipv4: ['127.0.1.1-127.0.9.254'],
    public_ipv4: ['203.0.113.0/24'],
    public_ipv6: ['2001:db8::/64'],
  },
  users: [{ id: 'usr-bench', name: 'Bench', email_address: 'bench@example.com' }],
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
  ],
  api_clients: [{ id: CLIENT, account: 'acc-bench', name: 'Bench', secret_file: 'secret' }],
}
