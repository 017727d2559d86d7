/** Lists of an account with 10,000 servers, and what an idempotency key costs. */
import { loadavg } from 'node:os'
import pg from 'pg'
import { fillAccount } from '../support/fixtures/many-rows.ts'
import { startBenchApi, type BenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { peakMib, resetPeak, residentMib } from './processes.ts'
import { median, type Table } from './report.ts'
import type { Effort } from './rounds.ts'

const SERVERS = 10_000
/** The requests of a kind before the measured ones, and of each measured round. */
const [WARM_UP, IN_ROUND, ROUNDS] = [100, 40, 10]

export const lists: Part = async ({ built, redisUrl, effort }) => {
  const load = loadavg()[0]!.toFixed(1)
  const note = `The load average of the machine before the run: ${load}.`
  const api = await startBenchApi(built, 'bench-lists', redisUrl)
  const pool = new pg.Pool({ host: api.socket, user: 'imds', database: 'postgres', max: 1 })
  try {
    const keys = await keyTable(api, note)
    await fillAccount(pool, 'acc-bench', SERVERS)
    return [keys, await listTable(api, effort, note)]
  } finally {
    await pool.end()
    await api.stop()
  }
}

/** Milliseconds of one request each, of two kinds that take turns. */
async function interleaved(
  one: () => Promise<unknown>,
  other: () => Promise<unknown>,
  between: () => Promise<unknown> = () => Promise.resolve(),
): Promise<{ readonly ms: readonly [number, number]; readonly ratio: number }> {
  const kinds = [one, other]
  const rounds: number[][] = []
  for (let round = -1; round < ROUNDS; round++) {
    const times: number[][] = [[], []]
    for (let n = 0; n < (round < 0 ? WARM_UP : IN_ROUND); n++)
      for (const i of n % 2 === 0 ? [0, 1] : [1, 0]) {
        const startedMs = performance.now()
        await kinds[i]!()
        times[i]!.push(performance.now() - startedMs)
        await between()
      }
    if (round >= 0) rounds.push(times.map(median))
  }
  const [first, second] = [0, 1].map((i) => median(rounds.map((times) => times[i]!))) as [number, number]
  return { ms: [first, second], ratio: median(rounds.map(([a, b]) => a! / b!)) }
}

async function keyTable(api: BenchApi, note: string): Promise<Table> {
  let n = 0
  let id = ''
  const create = async (headers: Readonly<Record<string, string>>) => {
    const response = await fetch(`http://127.0.0.1:${api.port}/1.0/cloud_ips`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${api.token}`, 'Content-Type': 'application/json', ...headers },
      body: '{"name": "bench"}',
    })
    if (response.status !== 201) throw new Error(await response.text())
    id = ((await response.json()) as { id: string }).id
  }
  const measured = await interleaved(
    () => create({}),
    () => create({ 'Idempotency-Key': `"bench-${n++}"` }),
    () => api.call('DELETE', `/1.0/cloud_ips/${id}`),
  )
  return {
    title: 'imds-api: creating a cloud IP, with and without an Idempotency-Key',
    columns: ['', 'ms'],
    rows: [
      ['without', measured.ms[0].toFixed(2)],
      ['with', measured.ms[1].toFixed(2)],
      ['the rate with a key, as a share of that without', measured.ratio.toFixed(2)],
      ['aim', '>= 0.85'],
    ],
    notes: [note],
  }
}

async function listTable(api: BenchApi, effort: Effort, note: string): Promise<Table> {
  const page = await interleaved(
    () => api.call('GET', '/1.0/servers?limit=100'),
    () => api.call('GET', '/1.0/servers/srv-05000'),
  )
  /** Reads a response as a client does that does not keep it. */
  const read = async (path: string) => {
    const startedMs = performance.now()
    const response = await fetch(`http://127.0.0.1:${api.port}/1.0/${path}`, {
      headers: { Authorization: `Bearer ${api.token}` },
    })
    let bytes = 0
    for await (const chunk of response.body!) bytes += (chunk as Uint8Array).length
    return { ms: performance.now() - startedMs, bytes }
  }
  const growths: number[] = []
  const runs: { ms: number; bytes: number }[] = []
  for (let n = 0; n < effort.rounds; n++) {
    resetPeak(api.pid)
    const residentBefore = residentMib(api.pid)
    runs.push(await read('servers'))
    growths.push(peakMib(api.pid) - residentBefore)
  }
  return {
    title: `imds-api: lists of an account with ${SERVERS} servers`,
    columns: ['', 'figure', 'aim'],
    rows: [
      ['GET of one server, ms', page.ms[1].toFixed(2), ''],
      ['the first page of 100, ms', page.ms[0].toFixed(2), ''],
      ['the page as a multiple of one server', page.ratio.toFixed(1), '<= 5'],
      ['the whole list, s', (median(runs.map(({ ms }) => ms)) / 1000).toFixed(2), ''],
      ['its size, MiB', (runs[0]!.bytes / 2 ** 20).toFixed(1), ''],
      ['by how much the resident memory grows, the most, MiB', Math.max(...growths).toFixed(1), '<= 30'],
    ],
    notes: [
      note,
      `GET /1.0/account has ${(await read('account')).bytes} bytes.`,
      'The first list is the first one of the process.',
    ],
  }
}
