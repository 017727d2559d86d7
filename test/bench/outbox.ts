/**
 * From a change by the API to the guest, and the whole region published again.
 *
 * The API runs from its sources on its embedded PostgreSQL and publishes to Redis; the daemon serves guests on
 * 127.0.1.x. Both measured servers share a core with nothing else; PostgreSQL, Redis and the guests are on the other.
 */
import { loadavg } from 'node:os'
import pg from 'pg'
import { request, until } from '../support/programs/daemon.ts'
import { OTHER_HYPERVISORS, startBenchApi, type BenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { startImds } from './processes.ts'
import { quantile, type Table } from './report.ts'

const REGION = 'bench-outbox'
const WARM_UP = 50
const GROUP = 500
const SERVERS = 10_000

interface BenchServer {
  readonly id: string
  readonly interface: string
  readonly address: string
}

/** The times of one server, of a group, and of the whole region. */
export const outbox: Part = async ({ built, redisUrl, effort }) => {
  const api = await startBenchApi(built, REGION, redisUrl)
  const imds = await startImds(built, { IMDS_STORE: redisUrl, IMDS_REGION: REGION, IMDS_HYPERVISOR: 'hv1' }, 0)
  const pool = new pg.Pool({ host: api.socket, user: 'imds', database: 'postgres', max: 2 })
  const load = loadavg()[0]!.toFixed(1)
  try {
    return [await measure(api, imds.port, pool, effort.seconds > 2 ? 1_000 : 300, load)]
  } finally {
    await pool.end()
    await imds.stop()
    await api.stop()
  }
}

async function measure(api: BenchApi, port: number, pool: pg.Pool, mappings: number, load: string): Promise<Table> {
  const publicIpOf = async ({ address }: BenchServer) => {
    const { status, body } = await request(port, '/latest/meta-data/public-ipv4', address)
    return status === 200 ? body.toString() : undefined
  }
  const newCloudIp = async () => (await api.call('POST', '/1.0/cloud_ips')) as { id: string; public_ipv4: string }
  const server = await createServer(api)
  await until(
    async () => (await request(port, '/latest/meta-data/instance-id', server.address)).status === 200,
    'the first server',
  )

  // Two cloud IPs take turns: a value that was removed still answers for a minute, so the same one again would be no
  // news.
  const cloudIps = [await newCloudIp(), await newCloudIp()] as const
  const mapOnce = async (n: number) => {
    const { id, public_ipv4: ip } = cloudIps[n % 2]!
    await api.call('POST', `/1.0/cloud_ips/${id}/map`, { destination: server.interface })
    const answeredMs = performance.now()
    while ((await publicIpOf(server)) !== ip) {
      /* ask again */
    }
    const tookMs = performance.now() - answeredMs
    await api.call('POST', `/1.0/cloud_ips/${id}/unmap`)
    return tookMs
  }
  const alone: number[] = []
  for (let n = 0; n < WARM_UP + mappings; n++) {
    const tookMs = await mapOnce(n)
    if (n >= WARM_UP) alone.push(tookMs)
  }

  const servers = [server]
  while (servers.length < GROUP) servers.push(await createServer(api))
  const group = (await api.call('POST', '/1.0/server_groups', {
    name: 'bench',
    servers: servers.map((one) => ({ server: one.id })),
  })) as { id: string }
  await drained(pool)
  const groupMs: number[] = []
  for (let n = 0; n < 2; n++) {
    const { id, public_ipv4: ip } = await newCloudIp()
    await api.call('POST', `/1.0/cloud_ips/${id}/map`, { destination: group.id })
    const mappedMs = performance.now()
    for (const one of servers)
      while ((await publicIpOf(one)) !== ip) await new Promise((resolve) => setTimeout(resolve, 1))
    groupMs.push(performance.now() - mappedMs)
    await api.call('POST', `/1.0/cloud_ips/${id}/unmap`)
    await drained(pool)
  }

  await copyServer(pool, server, SERVERS - GROUP)
  await drained(pool)
  const againMs = performance.now()
  await republish(pool)
  await drained(pool)
  const regionMs = performance.now() - againMs

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
      row(`one server, ${mappings} mappings`, alone, 'median 8, p99 30'),
      row(`a group of ${GROUP} servers, until the last guest sees it`, groupMs, '1000'),
      [`all ${SERVERS} servers published again, unchanged`, regionMs.toFixed(0), '', '', '20000'],
    ],
    notes: [`The load average before the run was ${load}.`],
  }
}

async function createServer(api: BenchApi): Promise<BenchServer> {
  const {
    id,
    interfaces: [first],
  } = (await api.call('POST', '/1.0/servers', { image: 'debian-12' })) as {
    id: string
    interfaces: { id: string; ipv4_address: string }[]
  }
  return { id, interface: first!.id, address: first!.ipv4_address }
}

/** Copies a server, on other hypervisors, and publishes the copies. */
async function copyServer(pool: pg.Pool, { id }: BenchServer, copies: number): Promise<void> {
  await pool.query(
    `insert into servers (id, account_id, name, status, image_id, server_type_id, zone_id, hypervisor, user_data,
       compatibility_mode, disk_encrypted, architecture)
     select 'srv-copy' || n, account_id, '', 'active', image_id, server_type_id, zone_id,
       'other' || n % ${OTHER_HYPERVISORS}, encode(convert_to(repeat('x', 1000), 'UTF8'), 'base64'),
       false, false, architecture
     from servers, generate_series(1, $2::integer) as n where id = $1`,
    [id, copies],
  )
  await pool.query(
    `insert into interfaces (id, server_id, mac_address, ipv4_address, ipv4_prefix_length)
     select 'int-copy' || n, 'srv-copy' || n, '02:24:20:00:' || lpad(to_hex(n / 256), 2, '0') || ':' ||
       lpad(to_hex(n % 256), 2, '0'), '10.0.' || n / 256 || '.' || n % 256, 32
     from generate_series(1, $1::integer) as n`,
    [copies],
  )
  await republish(pool)
}

/** Publishes every server again. */
async function republish(pool: pg.Pool): Promise<void> {
  await pool.query('insert into outbox (server_id, account_id) select id, account_id from servers order by id')
  await pool.query("notify imds_outbox, ''")
}

/** Waits until no server waits to be published. */
async function drained(pool: pg.Pool): Promise<void> {
  const query = 'select exists(select from outbox) as waits'
  await until(async () => !(await pool.query<{ waits: boolean }>(query)).rows[0]!.waits, 'the outbox', 600_000)
}
