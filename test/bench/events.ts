/**
 * Programs that wait for a resource or follow events: the memory of a wait, how soon it ends, and the rate of events.
 *
 * imds-api runs from its sources. It shares a core with nothing else; PostgreSQL and the
 * clients are on the other.
 */
import { loadavg } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Wire } from '../support/load/wire.ts'
import { until } from '../support/programs/daemon.ts'
import { readEvents } from '../support/programs/event-reader.ts'
import { startBenchApi, type BenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { residentMib } from './processes.ts'
import { median, quantile, type Table } from './report.ts'

/** The waits that are held, of two clients: fewer than an account may have. */
const HELD = 990
/** The waits that end one after the other. */
const WAKE_UPS = 100
const FOLLOWERS = 100
/** Clients that change something at the same time. */
const CHANGERS = 8

export const events: Part = async ({ built, redisUrl, effort }) => {
  const load = loadavg()[0]!.toFixed(1)
  const api = await startBenchApi(built, 'bench-events', redisUrl)
  try {
    const tokens = [api.token, await tokenOfAnother(api)] as const
    return [await waits(api, tokens, load), await followers(api, tokens, effort.seconds, load)]
  } finally {
    await api.stop()
  }
}

type Tokens = readonly [string, string]

async function waits(api: BenchApi, tokens: Tokens, load: string): Promise<Table> {
  const server = (await api.call('POST', '/1.0/servers', { image: 'debian-12' })) as {
    interfaces: { id: string }[]
  }
  const destination = server.interfaces[0]!.id
  const [held, other] = [await newCloudIp(api), await newCloudIp(api)]
  const connections = await connect(api, HELD)
  const askAll = (path: string) =>
    connections.map((connection, i) =>
      connection.ask(head(tokens[i % 2 === 0 ? 0 : 1], path)).then(() => performance.now()),
    )
  try {
    await Promise.all(askAll(`/1.0/cloud_ips/${held}`))
    await sleep(2_000)
    const idleMib = residentMib(api.pid)
    const responses = askAll(`/1.0/cloud_ips/${held}/wait?status=mapped&timeout=120`)
    await sleep(5_000)
    const heldMib = residentMib(api.pid)

    const [one] = (await connect(api, 1)) as [Wire]
    const afterMs: number[] = []
    for (let n = 0; n < WAKE_UPS; n++) {
      const [change, status] = n % 2 === 0 ? ['map', 'mapped'] : ['unmap', 'unmapped']
      const response = one
        .ask(head(tokens[0], `/1.0/cloud_ips/${other}/wait?status=${status}&timeout=60`))
        .then(() => performance.now())
      await sleep(20)
      await api.call('POST', `/1.0/cloud_ips/${other}/${change}`, change === 'map' ? { destination } : {})
      const changedMs = performance.now()
      afterMs.push(Math.max(0, (await response) - changedMs))
    }
    one.end()
    await api.call('POST', `/1.0/cloud_ips/${held}/map`, { destination })
    const changedMs = performance.now()
    const allMs = (await Promise.all(responses)).map((ms) => Math.max(0, ms - changedMs))
    return {
      title: 'imds-api: requests that wait for a state',
      columns: ['', 'figure', 'aim'],
      rows: [
        ['memory of a wait beyond its idle connection, KiB', (((heldMib - idleMib) * 1024) / HELD).toFixed(1), '<= 2'],
        ['from the response of the change to that of one wait, median, ms', median(afterMs).toFixed(1), '<= 20'],
        ['the same, p99, ms', quantile(afterMs, 0.99).toFixed(1), ''],
        [`the same for ${HELD} waits that one change ends, median, ms`, median(allMs).toFixed(1), ''],
        ['the same, the last one, ms', quantile(allMs, 1).toFixed(1), ''],
      ],
      notes: [`${HELD} waits of two clients are held. The load average before the run: ${load}.`],
    }
  } finally {
    for (const connection of connections) connection.end()
  }
}

async function followers(api: BenchApi, tokens: Tokens, seconds: number, load: string): Promise<Table> {
  const ids = await Promise.all(Array.from({ length: CHANGERS }, () => newCloudIp(api)))
  const connections = await connect(api, FOLLOWERS)
  const received = connections.map(() => 0)
  const { next: first } = await readEvents(`http://127.0.0.1:${api.port}`, tokens[0], 'now')
  let isDone = false as boolean // TypeScript does not see that it changes
  const following = connections.map(async (connection, i) => {
    for (let after = first; !isDone;) {
      const path = `/1.0/events?after=${after}&limit=1000&wait=2`
      const { body } = await connection.ask(head(tokens[i % 2 === 0 ? 0 : 1], path))
      const events = JSON.parse(body) as { id: string }[]
      after = events.at(-1)?.id ?? after
      received[i]! += events.length
    }
  })
  try {
    const startedMs = performance.now()
    let changes = 0
    await Promise.all(
      ids.map(async (id) => {
        while (performance.now() - startedMs < seconds * 2_000) {
          await api.call('PUT', `/1.0/cloud_ips/${id}`, { name: `name ${changes++}` })
        }
      }),
    )
    const changedMs = performance.now()
    await until(() => received.every((count) => count >= changes), 'each follower to have each event')
    const lastMs = performance.now()
    isDone = true
    await Promise.all(following)
    return {
      title: 'imds-api: events',
      columns: ['', 'figure'],
      rows: [
        ['changes a second, each an event', ((changes / (changedMs - startedMs)) * 1_000).toFixed(0)],
        [
          `events a second to ${FOLLOWERS} followers together`,
          (((changes * FOLLOWERS) / (lastMs - startedMs)) * 1_000).toFixed(0),
        ],
        ['from the last change to its event at the last follower, ms', (lastMs - changedMs).toFixed(0)],
      ],
      notes: [`${CHANGERS} clients make changes. The load average before the run: ${load}.`],
    }
  } finally {
    for (const connection of connections) connection.end()
  }
}

/** Connects from several addresses: each has a limit. */
async function connect({ port }: BenchApi, count: number): Promise<Wire[]> {
  const connections: Wire[] = []
  for (let n = 0; n < count; n++) connections.push(await Wire.open(port, `127.0.2.${1 + (n % 8)}`))
  return connections
}

function head(token: string, path: string): string {
  return `GET ${path} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ${token}\r\n\r\n`
}

async function newCloudIp(api: BenchApi): Promise<string> {
  return (await api.call('POST', '/1.0/cloud_ips'))['id'] as string
}

/** The access token of another client of the account: a client has fewer waits than its account. */
async function tokenOfAnother(api: BenchApi): Promise<string> {
  const { id } = (await api.call('POST', '/1.0/api_clients', { name: 'another' })) as { id: string }
  const { secret } = (await api.call('POST', `/1.0/api_clients/${id}/reset_secret`)) as { secret: string }
  const response = await fetch(`http://127.0.0.1:${api.port}/token`, {
    method: 'POST',
    headers: { Authorization: `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}` },
    body: new URLSearchParams({ grant_type: 'client_credentials' }),
  })
  if (!response.ok) throw new Error(await response.text())
  return ((await response.json()) as { access_token: string }).access_token
}
