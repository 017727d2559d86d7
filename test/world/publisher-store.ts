/**
 * The store of the publishers' world: a region on a primary, with a replica that lags and may take over. It gives no
 * notices, since no daemon listens.
 */
import type { ScriptAnswer, ScriptArguments } from '../../src/store/redis/script.ts'
import { Region } from './region.ts'
import type { PublishedStore, StoreClient } from './real-publisher.ts'
import type { Time } from './time.ts'

export class Store implements PublishedStore {
  readonly time: Time
  readonly cipher = undefined
  primary = new Region()
  #replica = new Region()
  #servers = 1
  losesAnswers = true
  /** Refuses so many of the next writes, as when its memory is full. */
  refusals = 0
  /** Called once, when a process has removed a server. */
  onRemoval: ((by: StoreClient) => void) | undefined

  constructor(time: Time) {
    this.time = time
  }

  replicate(): void {
    this.#replica = this.primary.copy()
  }

  /** The replica takes over, or an empty server. Who is connected to the old one may still use it for a while. */
  replacePrimary(by: 'the replica' | 'an empty server', overlapMs: number): void {
    const before = this.primary
    this.primary = by === 'the replica' ? this.#replica.copy() : new Region()
    Object.assign(this.primary, { history: String((this.#servers += 1)), isUp: true })
    this.time.later(overlapMs, () => (before.isUp = false))
  }

  latencyMs({ resumesAtMs }: StoreClient): number {
    const { dice, nowMs } = this.time
    return Math.max(0, resumesAtMs - nowMs) + (dice.chance(0.9) ? 0.01 + dice.below(200) / 100 : dice.below(200))
  }

  run(args: ScriptArguments, _id: string, server: Region): ScriptAnswer {
    if (args[0] === 'dry-run') return server.copy().run(args.slice(1), this.time.nowMs, nobodyListens)
    if (this.refusals > 0) {
      this.refusals -= 1
      throw new Error('OOM command not allowed')
    }
    return server.run(args, this.time.nowMs, nobodyListens)
  }

  removed(by: StoreClient): void {
    this.onRemoval?.(by)
    this.onRemoval = undefined
  }
}

const nobodyListens = (): undefined => undefined
