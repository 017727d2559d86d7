/**
 * What one guest asked for since it last booted, in bounded memory: times and counts by topic and by refusal, and a few
 * user agents, cut to a length. It has no path, value, token or key.
 *
 * A crawl is a sequence of requests without a pause of SILENCE_MS that asks for at least two of CRAWL_TOPICS within
 * CRAWL_MS. A crawl after such a pause is a new boot and restarts the trace. All other requests belong to the last boot,
 * so an agent that polls one value starts no boot.
 */
import type { Topic } from '../../metadata/target.ts'
import type { RequestOutcome } from './meter.ts'
import type { RefusalReason } from './refusals.ts'

/** The pause that ends a crawl, in ms: shorter than a reboot, longer than a client's pause before a retry. */
export const SILENCE_MS = 10_000
/** Clients retry for less than this time, in ms. */
const CRAWL_MS = 300_000
/** Topics that guests request when they boot. Other programs rarely request two of them. */
const CRAWL_TOPICS: ReadonlySet<Topic> = new Set<Topic>(['meta-data/', 'instance-id', 'public-keys', 'user-data'])
/** The most user agents of a boot, and the characters of each. */
const MAX_AGENTS = 4
const MAX_AGENT_LENGTH = 128
const MAX_RECENT = 8

/** A request, as a trace records it. `atMs`: of a monotonic clock. `agent`: the User-Agent header. */
export interface Noted {
  readonly topic: Topic
  readonly outcome: RequestOutcome
  readonly hasToken: boolean
  readonly agent: string | undefined
  readonly atMs: number
}

interface TopicCount {
  readonly topic: Topic
  readonly firstMs: number
  lastMs: number
  requests: number
  served: number
}
interface ReasonCount {
  readonly reason: RefusalReason
  lastMs: number
  requests: number
}

/** One of the last requests. */
export type Recent = Pick<Noted, 'topic' | 'outcome' | 'atMs'>

/** What a trace reports once for each boot: that a crawl began it, at `firstMs`, and how long the crawl took. */
export interface BootTraceReport {
  readonly onBegin: (firstMs: number) => void
  readonly onCrawlEnd: (tookMs: number) => void
}

export class BootTrace {
  readonly #report: BootTraceReport
  /** The oldest first. */
  readonly #recent: Recent[] = []
  #boot = new Boot()
  /** The requests since the last pause, until they are a crawl. */
  #next: Boot | undefined

  constructor(report: BootTraceReport) {
    this.#report = report
  }

  note(request: Noted): void {
    const { topic, outcome, atMs } = request
    if (this.#isSilent(atMs)) {
      this.#endCrawl()
      this.#next = new Boot()
    }
    this.#recent.push({ topic, outcome, atMs })
    if (this.#recent.length > MAX_RECENT) this.#recent.shift()
    const isNewCrawl = this.#boot.note(request)
    if (this.#next === undefined) {
      if (isNewCrawl) this.#report.onBegin(this.#boot.firstMs)
    } else if (this.#next.note(request)) {
      this.#boot = this.#next
      this.#next = undefined
      this.#report.onBegin(this.#boot.firstMs)
    }
  }

  /** Reports the crawl if it is over. */
  endCrawlIfSilent(nowMs: number): void {
    if (this.#isSilent(nowMs)) this.#endCrawl()
  }

  /** The last boot. */
  boot(nowMs: number): Boot {
    this.endCrawlIfSilent(nowMs)
    return this.#boot
  }

  /** The last requests, the latest first. */
  recent(): Recent[] {
    return this.#recent.toReversed()
  }

  #isSilent(nowMs: number): boolean {
    const last = this.#recent.at(-1)
    return last !== undefined && nowMs - last.atMs >= SILENCE_MS
  }

  #endCrawl(): void {
    const boot = this.#boot
    if (boot.crawledMs !== undefined) return
    boot.crawledMs = boot.lastMs
    if (boot.isCrawl) this.#report.onCrawlEnd(boot.crawledMs - boot.firstMs)
  }
}

/** What happened in one boot. Times are of the same clock as those of the requests. */
export class Boot {
  /** Whether it began with a crawl. If not, the guest booted before its first request that this daemon saw. */
  isCrawl = false
  firstMs = 0
  lastMs = 0
  /** The last request before the first pause; undefined before that pause. */
  crawledMs: number | undefined
  requests = 0
  withToken = 0
  readonly agents: string[] = []
  /** In the order of their first requests, as are the refusals. */
  readonly topics: TopicCount[] = []
  readonly refusals: ReasonCount[] = []
  #crawlTopics = 0

  /** Notes a request. True if it makes this a crawl. */
  note({ topic, outcome, hasToken, agent, atMs }: Noted): boolean {
    const wasCrawl = this.isCrawl
    if (this.requests === 0) this.firstMs = atMs
    this.lastMs = atMs
    this.requests += 1
    if (hasToken) this.withToken += 1
    let count = this.topics.find((one) => one.topic === topic)
    if (count === undefined) {
      this.topics.push((count = { topic, firstMs: atMs, lastMs: atMs, requests: 0, served: 0 }))
      if (CRAWL_TOPICS.has(topic) && atMs - this.firstMs <= CRAWL_MS) this.#crawlTopics += 1
      this.isCrawl = this.#crawlTopics >= 2
    }
    count.lastMs = atMs
    count.requests += 1
    if (outcome === 'served') count.served += 1
    else this.#noteRefusal(outcome, atMs)
    if (agent !== undefined && this.agents.length < MAX_AGENTS) this.#noteAgent(agent)
    return !wasCrawl && this.isCrawl
  }

  #noteRefusal(reason: RefusalReason, atMs: number): void {
    const count = this.refusals.find((one) => one.reason === reason)
    if (count === undefined) this.refusals.push({ reason, lastMs: atMs, requests: 1 })
    else {
      count.lastMs = atMs
      count.requests += 1
    }
  }

  #noteAgent(agent: string): void {
    if (agent.length <= MAX_AGENT_LENGTH) {
      if (!this.agents.includes(agent)) this.agents.push(agent)
      return
    }
    const start = agent.slice(0, MAX_AGENT_LENGTH)
    // a copy, since a slice would keep all of the header in memory
    if (!this.agents.includes(start)) this.agents.push(Buffer.from(start, 'latin1').toString('latin1'))
  }
}
