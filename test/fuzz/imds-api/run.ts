/**
 * Fuzzes imds-api: sends valid and mutated requests as different identities, checks each response, and that no refused
 * request and no read has changed anything.
 */
import { Agent } from 'node:http'
import { diceOf } from '../dice.ts'
import type { ApiHost } from './host.ts'
import { mutate } from './mutations.ts'
import { buildOracle } from './oracle.ts'
import { idsIn, type Identity, type Lane } from './population.ts'
import { operationsOf, requestOf, type Operation } from './requests.ts'
import { curlOf, sendRequest, type ApiRequest, type ApiResponse } from './send.ts'
import { shorten } from './shorten.ts'

/** The settings of a run. `index`: the only request to send. */
export interface ApiRun {
  readonly seed: number
  readonly requests: number
  readonly index?: number
}

/** The figures and failures of a run. `unsuccessful`: operations of which no valid request had a status below 300. */
export interface ApiReport {
  readonly tried: number
  readonly statuses: ReadonlyMap<number, number>
  readonly unsuccessful: readonly string[]
  readonly heapGrew: number
  readonly failures: readonly string[]
}

/** A request, and whose it is. */
interface Sent {
  readonly request: ApiRequest
  readonly operation: Operation
  readonly isMutated: boolean
  readonly sender: Identity
  readonly lane: Lane
}
/** What came back, and what is wrong with it or with what the request has changed. */
interface Outcome {
  readonly response?: ApiResponse | undefined
  readonly wrong?: string | undefined
}

const MAX_FAILURES = 10
/** The share of requests that are mutated. */
const MUTATED = 0.5
/** The share of the requests that is sent before memory is first measured. */
const WARM_UP = 0.2
const MAX_GROWTH = 30 * 2 ** 20
/** How many ids, cursors and tags of its responses a lane remembers. */
const REMEMBERED = 200
const SHOWN = 3_000

/** Sends requests 0 to `requests`, or the one with `index`. Request N is of lane N modulo their number. */
export async function fuzzApi(host: ApiHost, { seed, requests, index }: ApiRun): Promise<ApiReport> {
  const { lanes } = host
  const operations = operationsOf(host)
  const attempt = buildAttempt(host)
  const statuses = new Map<number, number>()
  const unsuccessful = new Set(operations)
  const failures: string[] = []
  let tried = 0

  const one = async (n: number, lane: Lane, agent: Agent) => {
    const sent = makeRequest(host, operations, lane, seed, n)
    const outcome = await attempt(sent, agent)
    tried += 1
    const { status } = outcome.response ?? {}
    if (status !== undefined) statuses.set(status, (statuses.get(status) ?? 0) + 1)
    if (status !== undefined && status < 300 && !sent.isMutated) {
      unsuccessful.delete(sent.operation)
      if (sent.sender.may === 'change') remember(lane, sent.request, outcome.response!)
    }
    if (outcome.wrong === undefined && index === undefined) return
    const fails = async (request: ApiRequest) =>
      (await attempt({ ...sent, request, isMutated: true })).wrong !== undefined
    const request = outcome.wrong === undefined ? sent.request : await shorten(sent.request, fails)
    const shown = index === undefined ? SHOWN : Infinity
    failures.push(
      [
        `request ${n} of seed ${seed}, of the ${sent.sender.name}: ${outcome.wrong ?? 'correct'}`,
        `  to repeat it: npm run fuzz -- api --seed ${seed} --index ${n}`,
        `  shortest: ${curlOf(host.api.baseUrl, request).slice(0, shown)}`,
        `  got: ${outcome.response?.text.slice(0, shown) ?? 'no response'}`,
      ].join('\n'),
    )
  }
  const run = (from: number, to: number) =>
    Promise.all(
      lanes.map(async (lane, first) => {
        const agent = new Agent({ keepAlive: true, maxSockets: 1 })
        for (let n = from; n < to && failures.length < MAX_FAILURES; n++)
          if (n % lanes.length === first) await one(n, lane, agent)
        agent.destroy()
      }),
    )

  const warm = index ?? Math.ceil(requests * WARM_UP)
  if (index === undefined) await run(0, warm)
  const before = await host.heap()
  await run(warm, index === undefined ? requests : index + 1)
  const heapGrew = (await host.heap()) - before
  if (heapGrew > MAX_GROWTH) failures.push(`memory grew by ${heapGrew} bytes`)
  return {
    ...{ tried, statuses, heapGrew },
    unsuccessful: [...unsuccessful].map(({ method, path }) => `${method} ${path}`),
    failures: [...failures, ...(await host.problems())],
  }
}

/** Makes request N. Repeated alone it has other ids, but is the same otherwise. */
function makeRequest(host: ApiHost, operations: readonly Operation[], lane: Lane, seed: number, n: number): Sent {
  const dice = diceOf(seed, n)
  const sender = dice.pick(lane.identities)
  const operation = dice.pick(operations)
  const valid = requestOf(operation, sender, { dice, lane, planted: host.planted })
  const isMutated = dice.chance(MUTATED)
  return { request: isMutated ? mutate(valid, dice) : valid, operation, isMutated, sender, lane }
}

/** Builds what sends a request and checks its response. */
function buildAttempt(host: ApiHost): (sent: Sent, agent?: Agent) => Promise<Outcome> {
  const check = buildOracle(host)
  /** The newest event of each lane after its last request. */
  const newest = new Map<Lane, number>()
  return async ({ request, isMutated, sender, lane }, agent) => {
    try {
      const response = await sendRequest(host.api.baseUrl, request, agent)
      if (response === undefined) return {}
      const before = newest.get(lane)
      newest.set(lane, await host.newestEvent(lane))
      const mayChange = response.status < 300 && request.method !== 'GET' && request.method !== 'HEAD'
      const isUnchanged = mayChange || before === undefined || newest.get(lane) === before
      const wrong = check(request, isMutated, sender, response)
      return { response, wrong: wrong ?? (isUnchanged ? undefined : 'it has changed something') }
    } catch (error) {
      return { wrong: String(error) }
    }
  }
}

/** Keeps what later requests of the lane can use, and forgets what was deleted. */
function remember({ ids, cursors, tags }: Lane, { method, target }: ApiRequest, { text, headers }: ApiResponse): void {
  for (const id of idsIn(text)) {
    ids.delete(id)
    ids.add(id)
  }
  if (method === 'DELETE') for (const id of idsIn(target)) ids.delete(id)
  for (const id of [...ids].slice(0, Math.max(0, ids.size - REMEMBERED))) ids.delete(id)
  const [, cursor] = /after=([^&>]+)/.exec(String(headers['link'])) ?? []
  if (cursor !== undefined) cursors.push(decodeURIComponent(cursor))
  if (typeof headers['etag'] === 'string') tags.push(headers['etag'])
  for (const list of [cursors, tags]) list.splice(0, list.length - REMEMBERED)
}
