/**
 * What each guest has asked for (contract H10): for each kind of path when that was last, the result, the user agent, and
 * how often. It has no path, value, token or key. A row lasts as long as the view has its instance, and no longer than
 * the process.
 */
import type { Topic } from '../../metadata/target.ts'
import { guestOf, type FoundGuest, type Guest } from './identify.ts'
import type { RequestOutcome } from './meter.ts'

const MAX_AGENT_LENGTH = 128

/** The last request for a kind of path. `atMs`: of a monotonic clock. `agent`: the first characters of User-Agent. */
export interface LastRequest {
  readonly topic: Topic
  outcome: RequestOutcome
  agent: string | undefined
  atMs: number
  /** How many there were. */
  count: number
}

export class LastRequests {
  readonly #rows = new WeakMap<Guest['stay'], Map<Topic, LastRequest>>()

  /** Notes a request of a guest. It waits for nothing. */
  note(found: FoundGuest, topic: Topic, outcome: RequestOutcome, agent: string | undefined, atMs: number): void {
    const guest = guestOf(found)
    if (guest === undefined) return
    let rows = this.#rows.get(guest.stay)
    if (rows === undefined) this.#rows.set(guest.stay, (rows = new Map<Topic, LastRequest>()))
    let row = rows.get(topic)
    if (row === undefined) rows.set(topic, (row = { topic, outcome, agent, atMs, count: 0 }))
    row.outcome = outcome
    row.agent = agent === undefined ? undefined : cut(agent)
    row.atMs = atMs
    row.count += 1
  }

  /** The rows of a guest, the latest first. */
  of({ stay }: Pick<Guest, 'stay'>): LastRequest[] {
    return [...(this.#rows.get(stay)?.values() ?? [])].sort((a, b) => b.atMs - a.atMs)
  }
}

/** A copy, since a slice would keep the whole header in memory. */
function cut(agent: string): string {
  return agent.length <= MAX_AGENT_LENGTH
    ? agent
    : Buffer.from(agent.slice(0, MAX_AGENT_LENGTH), 'latin1').toString('latin1')
}
