/**
 * imds-api of two trees: the CPU time of its process for a request, as the ratio of this tree to the other. The trees
 * take turns, so that a neighbour or a drift affects both. Without `--old` this tree is compared with itself.
 *
 *   git worktree add --detach ../old COMMIT && cp -al node_modules ../old/node_modules
 *   npm run bench compare -- --old ../old
 *
 * Both run from their sources, each on a PostgreSQL of its own, and publish to one Redis.
 */
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { formatRequest, Wire } from '../support/load/wire.ts'
import { startBenchApi, type BenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { cpuSeconds } from './processes.ts'
import { quantile } from './report.ts'

const ROUNDS = 12
const CLIENTS = 4
const SERVERS = 50
/** After the requests of a round, because what they leave to publish belongs to them. */
const SETTLE_MS = 200

/** Sends a request, and returns its body. */
type Ask = (method: string, path: string, body?: object) => Promise<string>

/** The imds-api of one tree. `serverId`: one of its servers. */
interface Side {
  readonly api: BenchApi
  readonly clients: readonly Ask[]
  readonly serverId: string
}

const REQUESTS: Readonly<Record<string, (ask: Ask, side: Side) => Promise<unknown>>> = {
  'GET of a server': (ask, { serverId }) => ask('GET', `servers/${serverId}`),
  [`list of ${SERVERS} servers`]: (ask) => ask('GET', 'servers'),
  'create and delete of a server': (ask) => createAndDelete(ask, 'servers', { image: 'img-bench' }),
  'create and delete of a config map': (ask) => createAndDelete(ask, 'config_maps', { name: 'a', data: { b: [1, 2] } }),
}

export const compare: Part = async ({ built, redisUrl, effort, old = '.' }) => {
  const apis: BenchApi[] = []
  try {
    for (const [name, tree] of Object.entries({ new: '.', old }))
      apis.push(await startBenchApi(built, `bench-${name}`, redisUrl, join(resolve(tree), 'src/imds-api/main.ts')))
    const sides = await Promise.all(apis.map(prepare))
    const rows: string[][] = []
    for (const [name, send] of Object.entries(REQUESTS)) {
      const rounds: number[][] = []
      for (let round = -1; round < ROUNDS; round++) {
        const micros: number[] = []
        for (const i of round % 2 === 0 ? [0, 1] : [1, 0]) micros[i] = await cpuMicros(sides[i]!, send, effort.seconds)
        if (round >= 0) rounds.push(micros) // the one before warms up
      }
      const of = (values: readonly number[]) => [0.5, 0.25, 0.75].map((share) => quantile(values, share))
      const [fresh, other] = [0, 1].map((i) => of(rounds.map((micros) => micros[i]!))[0]!.toFixed(0))
      const [ratio, low, high] = of(rounds.map(([a, b]) => a! / b!)).map((one) => one.toFixed(3))
      rows.push([name, fresh!, other!, ratio!, `${low!} to ${high!}`, '<= 1.03'])
    }
    return [
      {
        title: 'imds-api: CPU time of a request, beside another tree',
        columns: ['', 'µs', 'µs of the other', 'ratio', 'middle half', 'aim'],
        rows,
        notes: [`Medians of ${ROUNDS} rounds, ${CLIENTS} clients. The other tree: ${resolve(old)}.`],
      },
    ]
  } finally {
    for (const api of apis) await api.stop()
  }
}

async function prepare(api: BenchApi): Promise<Side> {
  let serverId = ''
  for (let n = 0; n < SERVERS; n++)
    serverId = String((await api.call('POST', '/1.0/servers', { image: 'img-bench' }))['id'])
  const clients: Ask[] = []
  for (let n = 0; n < CLIENTS; n++) {
    const wire = await Wire.open(api.port, '127.0.0.1')
    clients.push(async (method, path, body) => {
      const reply = await wire.ask(formatRequest(api.token, method, `/1.0/${path}`, body))
      if (reply.status < 200 || reply.status > 299) throw new Error(`${method} ${path}: ${reply.status} ${reply.body}`)
      return reply.body
    })
  }
  return { api, clients, serverId }
}

/** The CPU time of a request, while all clients send it for some seconds. */
async function cpuMicros(side: Side, send: (typeof REQUESTS)[string], seconds: number): Promise<number> {
  const { pid } = side.api
  const [before, endMs] = [cpuSeconds(pid), performance.now() + seconds * 1_000]
  let count = 0
  await Promise.all(
    side.clients.map(async (ask) => {
      for (; performance.now() < endMs; count++) await send(ask, side)
    }),
  )
  await sleep(SETTLE_MS)
  return ((cpuSeconds(pid) - before) / count) * 1e6
}

async function createAndDelete(ask: Ask, path: string, body: object): Promise<void> {
  const { id } = JSON.parse(await ask('POST', path, body)) as { readonly id: string }
  await ask('DELETE', `${path}/${id}`)
}
