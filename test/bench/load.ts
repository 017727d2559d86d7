/** imds-api under load: a mix of requests by 50 clients, more reads than it can answer, and 10,000 idle connections. */
import { setTimeout as sleep } from 'node:timers/promises'
import { failed, runMixed } from '../support/load/mixed.ts'
import { offer, type Caller } from '../support/load/open-loop.ts'
import { formatRequest, Wire } from '../support/load/wire.ts'
import { CALLERS, startBenchApi, type BenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { residentMib } from './processes.ts'
import { quantile, type Table } from './report.ts'

const CLIENTS = 50
/** The reads of a caller that are sent at once to find out how many are answered in a second. */
const AT_ONCE = 4
const IDLE = 10_000
/** An address may have 256 connections. */
const IDLE_ADDRESSES = 50
const POLITE_PAUSE_MS = 20

export const load: Part = async ({ built, redisUrl, effort }) => {
  const imdsApi = await startBenchApi(built, 'bench-load', redisUrl)
  try {
    const tokens: string[] = []
    for (const caller of CALLERS.slice(0, 9)) tokens.push(await imdsApi.tokenOf(caller))
    const seconds = effort.seconds
    return [
      await mix(imdsApi, tokens, 12 * seconds),
      await overload(imdsApi, tokens, 2 * seconds),
      await idleConnections(imdsApi, tokens[0]!, seconds),
    ]
  } finally {
    await imdsApi.stop()
  }
}

/** 50 clients that read, create, map and delete. */
async function mix(imdsApi: BenchApi, tokens: readonly string[], seconds: number): Promise<Table> {
  const { port, pid } = imdsApi
  const startedMs = performance.now()
  const isAfter = (share: number) => performance.now() - startedMs > seconds * 1_000 * share
  const running = runMixed(port, tokens, CLIENTS, Infinity, () => isAfter(1))
  const resident: number[] = []
  for (let sample = 1; sample <= 12; sample++) {
    while (!isAfter(sample / 12)) await sleep(100)
    resident.push(residentMib(pid))
  }
  const { answers, ms } = await running
  const [before, after] = [resident.slice(3, 6), resident.slice(9)].map((part) => Math.max(...part))
  return {
    title: `${CLIENTS} clients read, create, map and delete for ${seconds} s`,
    columns: ['', 'figure', 'aim'],
    rows: [
      ['requests', String(ms.length), ''],
      ['median ms', quantile(ms, 0.5).toFixed(0), ''],
      ['p99 ms', quantile(ms, 0.99).toFixed(0), ''],
      ['not 2xx', String(Object.values(failed(answers)).reduce((sum, count) => sum + count, 0)), '0'],
      [
        'resident MiB, most of the second quarter; of the last one',
        `${before!.toFixed(0)}; ${after!.toFixed(0)}`,
        'equal',
      ],
    ],
    notes: Object.entries(failed(answers)).map(([name, count]) => `${name}: ${count}`),
  }
}

/** Eight accounts send half and twice the reads that imds-api can answer, while a ninth sends few. */
async function overload(imdsApi: BenchApi, tokens: readonly string[], seconds: number): Promise<Table> {
  const { port } = imdsApi
  const callers: Caller[] = []
  for (const [i, token] of tokens.entries()) {
    const wire = await Wire.open(port, '127.0.0.1')
    const { body } = await wire.ask(formatRequest(token, 'POST', '/1.0/cloud_ips'))
    wire.end()
    const { id } = JSON.parse(body) as { readonly id: string }
    callers.push({ address: `127.0.2.${1 + i}`, request: formatRequest(token, 'GET', `/1.0/cloud_ips/${id}`) })
  }
  const polite = callers.pop()!
  const capacity = await answeredPerSecond(port, callers, seconds)
  const rows: string[][] = []
  for (const share of [0.5, 2]) {
    const perSecond = Math.round(capacity * share)
    const ended = new AbortController()
    const politeReads = readNowAndThen(port, polite, ended.signal)
    const startedMs = performance.now()
    const { answered, late, statuses } = await offer(port, callers, perSecond, seconds)
    const tookSeconds = (performance.now() - startedMs) / 1_000
    ended.abort()
    const politeOnes = await politeReads
    const other = [...statuses].filter(([status]) => status !== 200 && status !== 503)
    rows.push([
      `${share} of the capacity: ${perSecond} a second`,
      (answered.length / tookSeconds).toFixed(0),
      String(statuses.get(503) ?? 0),
      String(other.reduce((sum, [, count]) => sum + count, 0)),
      quantile(answered, 0.5).toFixed(0),
      quantile(answered, 0.99).toFixed(0),
      quantile(late, 0.99).toFixed(0),
      quantile(politeOnes.ms, 0.99).toFixed(0),
      String(politeOnes.refused),
    ])
    await sleep(1_000)
  }
  return {
    title: `Reads of ${callers.length} accounts, and of one that sends few`,
    columns: [
      'sent',
      '200 a second',
      '503',
      'other',
      'median ms of 200',
      'p99 ms of 200',
      'p99 ms of 200 since due',
      'p99 ms of the account with few',
      'its refusals',
    ],
    rows,
    notes: [
      `The capacity is what is answered to ${AT_ONCE} reads of each account at once: ${capacity.toFixed(0)} a second. Since due: with the wait for one of the 256 connections of its client.`,
      'The aim: a p99 of at most 500 ms at twice the capacity, and no refusal of the account with few. The clients share a core with PostgreSQL.',
    ],
  }
}

async function answeredPerSecond(port: number, callers: readonly Caller[], seconds: number): Promise<number> {
  let answered = 0
  const endMs = performance.now() + seconds * 1_000
  await Promise.all(
    callers.flatMap(({ address, request }) =>
      Array.from({ length: AT_ONCE }, async () => {
        const wire = await Wire.open(port, address)
        while (performance.now() < endMs) if ((await wire.ask(request)).status === 200) answered++
        wire.end()
      }),
    ),
  )
  return answered / seconds
}

/** One read after another, with pauses. */
async function readNowAndThen(
  port: number,
  { address, request }: Caller,
  signal: AbortSignal,
): Promise<{ readonly ms: readonly number[]; readonly refused: number }> {
  const wire = await Wire.open(port, address)
  const ms: number[] = []
  let refused = 0
  while (!signal.aborted) {
    const reply = await wire.ask(request)
    if (reply.status === 200) ms.push(reply.ms)
    else refused++
    await sleep(POLITE_PAUSE_MS)
  }
  wire.end()
  return { ms, refused }
}

/** What 10,000 idle connections cost. */
async function idleConnections({ port, pid }: BenchApi, token: string, seconds: number): Promise<Table> {
  const caller = { address: '127.0.0.1', request: formatRequest(token, 'GET', '/1.0/zones') }
  const read = async () => {
    const { ms, refused } = await readNowAndThen(port, caller, AbortSignal.timeout(seconds * 1_000))
    if (refused > 0) throw new Error(`${refused} reads were refused`)
    return quantile(ms, 0.99)
  }
  const [beforeMs, beforeMib] = [await read(), residentMib(pid)]
  const wires: Wire[] = []
  for (let i = 0; i < IDLE; i++) wires.push(await Wire.open(port, `127.0.3.${1 + (i % IDLE_ADDRESSES)}`))
  await sleep(1_000)
  const [duringMs, duringMib] = [await read(), residentMib(pid)]
  const open = wires.filter((wire) => wire.isOpen).length
  for (const wire of wires) wire.end()
  return {
    title: `${IDLE} idle connections of ${IDLE_ADDRESSES} addresses`,
    columns: ['', 'before', 'during', 'aim'],
    rows: [
      ['connections that imds-api keeps', '', String(open), '<= 4096'],
      ['resident MiB', beforeMib.toFixed(0), duringMib.toFixed(0), ''],
      ['p99 ms of a client that sends requests', beforeMs.toFixed(1), duringMs.toFixed(1), '<= 2 times'],
    ],
    notes: [],
  }
}
