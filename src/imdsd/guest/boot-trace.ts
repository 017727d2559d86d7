/**
 * What one guest asked for since it last booted, in bounded memory: times and counts in typed slots, and a few user
 * agents, cut to a length. It has no path, value, token or key.
 *
 * A crawl is a sequence of requests without a pause of SILENCE_MS that asks for at least two of CRAWL_TOPICS within
 * CRAWL_MS. A crawl after such a pause is a new boot and restarts the trace. All other requests belong to the last boot,
 * so an agent that polls one value starts no boot.
 */
import { TOPICS, type Topic } from '../../metadata/target.ts'
import { positions, type RequestOutcome } from './meter.ts'
import { REFUSALS, type RefusalReason } from './refusals.ts'

/** The pause that ends a crawl, in ms: shorter than a reboot, longer than a client's pause before a retry. */
export const SILENCE_MS = 10_000
/** Clients retry for less than this time, in ms. */
const CRAWL_MS = 300_000
/** Topics that guests request when they boot. Other programs rarely request two of them. */
const CRAWL_TOPICS: ReadonlySet<Topic> = new Set<Topic>(['meta-data/', 'instance-id', 'public-keys', 'user-data'])
/** The most user agents of a boot, and the characters of each. */
const MAX_AGENTS = 4
const AGENT_LENGTH = 128
/** The number of last requests that are kept. */
const RECENT = 8

const TOPIC_AT = positions(TOPICS)
const REFUSAL_AT = positions(REFUSALS)
const SERVED = -1

/** A request, as a trace records it. `atMs`: of a monotonic clock. `agent`: the User-Agent header. */
export interface Noted {
  readonly topic: Topic
  readonly outcome: RequestOutcome
  readonly hasToken: boolean
  readonly agent: string | undefined
  readonly atMs: number
}

/** What happened in one boot. Times are of the same clock as those of the requests. */
export interface Boot {
  /** Whether it began with a crawl. If not, the guest booted before its first request that this daemon saw. */
  readonly isCrawl: boolean
  readonly firstMs: number
  readonly lastMs: number
  /** The last request before the first pause; undefined before that pause. */
  readonly crawledMs: number | undefined
  readonly requests: number
  readonly withToken: number
  readonly agents: readonly string[]
  /** In the order of their first requests. */
  readonly topics: readonly {
    readonly topic: Topic
    readonly firstMs: number
    readonly lastMs: number
    readonly requests: number
    readonly served: number
  }[]
  readonly refusals: readonly { readonly reason: RefusalReason; readonly lastMs: number; readonly requests: number }[]
}

/** One of the last requests. */
export type Recent = Pick<Noted, 'topic' | 'outcome' | 'atMs'>

/** What a trace reports once for each boot: that a crawl began it, at `firstMs`, and how long the crawl took. */
export interface BootTraceReport {
  readonly began: (firstMs: number) => void
  readonly crawled: (tookMs: number) => void
}

/** The trace of one guest. */
export class BootTrace {
  readonly #report: BootTraceReport
  readonly #recent = new Float64Array(RECENT * 3)
  #count = 0
  #lastMs = 0
  #boot = new Recording()
  /** The requests since the last pause, until they are a crawl. It is allocated at the first pause. */
  #next: Recording | undefined
  #isNext = false

  constructor(report: BootTraceReport) {
    this.#report = report
  }

  /** Notes a request. */
  note(request: Noted): void {
    const { topic, outcome, atMs } = request
    if (this.#count > 0 && atMs - this.#lastMs >= SILENCE_MS) this.#pause()
    const at = (this.#count % RECENT) * 3
    this.#recent[at] = atMs
    this.#recent[at + 1] = TOPIC_AT[topic]
    this.#recent[at + 2] = outcome === 'served' ? SERVED : REFUSAL_AT[outcome]
    this.#count += 1
    this.#lastMs = atMs
    const wasCrawl = this.#boot.isCrawl
    this.#boot.note(request)
    if (!this.#isNext) {
      if (!wasCrawl && this.#boot.isCrawl) this.#report.began(this.#boot.firstMs)
      return
    }
    const next = this.#next!
    next.note(request)
    if (!next.isCrawl) return
    this.#next = this.#boot
    this.#boot = next
    this.#isNext = false
    this.#report.began(next.firstMs)
  }

  /** Reports the crawl if it is over. */
  endCrawlIfSilent(nowMs: number): void {
    if (nowMs - this.#lastMs >= SILENCE_MS) this.#endCrawl()
  }

  /** The last boot. */
  boot(nowMs: number): Boot {
    this.endCrawlIfSilent(nowMs)
    return this.#boot.read()
  }

  /** The last requests, the latest first. */
  recent(): Recent[] {
    return Array.from({ length: Math.min(this.#count, RECENT) }, (_, back) => {
      const at = ((this.#count - 1 - back) % RECENT) * 3
      const refusal = this.#recent[at + 2]!
      return {
        atMs: this.#recent[at]!,
        topic: TOPICS[this.#recent[at + 1]!]!,
        outcome: refusal === SERVED ? 'served' : REFUSALS[refusal]!,
      }
    })
  }

  #pause(): void {
    this.#endCrawl()
    this.#next ??= new Recording()
    this.#next.clear()
    this.#isNext = true
  }

  #endCrawl(): void {
    const boot = this.#boot
    if (boot.crawledMs !== undefined) return
    boot.crawledMs = this.#lastMs
    if (boot.isCrawl) this.#report.crawled(boot.crawledMs - boot.firstMs)
  }
}

/** Counts and times of one boot. */
class Recording {
  /** For each topic: first and last time, requests, served requests. */
  readonly #topics = new Float64Array(TOPICS.length * 4)
  /** For each refusal: last time, requests. */
  readonly #refusals = new Float64Array(REFUSALS.length * 2)
  readonly #agents: string[] = []
  #requests = 0
  #withToken = 0
  #crawlTopics = 0
  firstMs = 0
  #lastMs = 0
  crawledMs: number | undefined

  get isCrawl(): boolean {
    return this.#crawlTopics >= 2
  }

  clear(): void {
    this.#topics.fill(0)
    this.#refusals.fill(0)
    this.#agents.length = 0
    this.#requests = this.#withToken = this.#crawlTopics = this.firstMs = this.#lastMs = 0
    this.crawledMs = undefined
  }

  note({ topic, outcome, hasToken, agent, atMs }: Noted): void {
    if (this.#requests === 0) this.firstMs = atMs
    this.#lastMs = atMs
    this.#requests += 1
    if (hasToken) this.#withToken += 1
    const topics = this.#topics
    const at = TOPIC_AT[topic] * 4
    if (topics[at + 2] === 0) {
      topics[at] = atMs
      if (CRAWL_TOPICS.has(topic) && atMs - this.firstMs <= CRAWL_MS) this.#crawlTopics += 1
    }
    topics[at + 1] = atMs
    topics[at + 2] = topics[at + 2]! + 1
    if (outcome === 'served') topics[at + 3] = topics[at + 3]! + 1
    else {
      const refusal = REFUSAL_AT[outcome] * 2
      this.#refusals[refusal] = atMs
      this.#refusals[refusal + 1] = this.#refusals[refusal + 1]! + 1
    }
    if (agent !== undefined && this.#agents.length < MAX_AGENTS) this.#noteAgent(agent)
  }

  read(): Boot {
    const topics = TOPICS.map((topic, i) => {
      const [firstMs = 0, lastMs = 0, requests = 0, served = 0] = this.#topics.subarray(i * 4, i * 4 + 4)
      return { topic, firstMs, lastMs, requests, served }
    })
    const refusals = REFUSALS.map((reason, i) => {
      const [lastMs = 0, requests = 0] = this.#refusals.subarray(i * 2, i * 2 + 2)
      return { reason, lastMs, requests }
    })
    return {
      isCrawl: this.isCrawl,
      firstMs: this.firstMs,
      lastMs: this.#lastMs,
      crawledMs: this.crawledMs,
      requests: this.#requests,
      withToken: this.#withToken,
      agents: [...this.#agents],
      topics: topics.filter(({ requests }) => requests > 0).sort((a, b) => a.firstMs - b.firstMs),
      refusals: refusals.filter(({ requests }) => requests > 0),
    }
  }

  #noteAgent(agent: string): void {
    if (agent.length <= AGENT_LENGTH) {
      if (!this.#agents.includes(agent)) this.#agents.push(agent)
      return
    }
    const start = agent.slice(0, AGENT_LENGTH)
    // a copy, since a slice would keep all of the header in memory
    if (!this.#agents.includes(start)) this.#agents.push(Buffer.from(start, 'latin1').toString('latin1'))
  }
}
