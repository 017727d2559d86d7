/** Announces this imds-api and the drained hypervisors in the store, so that imdsctl refuses changes that imds-api would overwrite. */
import type { Log } from '../../runtime/log-codes.ts'
import { PeriodicTask } from '../../runtime/periodic-task.ts'
import type { HypervisorUsage } from '../changes/hypervisors.ts'

/** Dependencies. `announce`: writes it, with the time since which each drained hypervisor is that. */
export interface HypervisorCheckParts {
  readonly hypervisors: () => Promise<readonly Pick<HypervisorUsage, 'name' | 'drained_at'>[]>
  readonly announce: (drained: ReadonlyMap<string, string>) => Promise<void>
  readonly log: Pick<Log, 'debug'>
}

const CHECK_INTERVAL_MS = 60_000

/** Announces at its start and every minute. */
export class HypervisorCheck extends PeriodicTask {
  readonly #parts: HypervisorCheckParts

  constructor(parts: HypervisorCheckParts) {
    super(
      () => this.check(),
      CHECK_INTERVAL_MS,
      ({ message }) => {
        parts.log.debug({ reason: message }, 'imds-api was not announced; trying again in a minute')
      },
    )
    this.#parts = parts
  }

  /** Rejects if the database or the store does not answer. */
  async check(): Promise<void> {
    const { hypervisors, announce } = this.#parts
    const drained = (await hypervisors()).flatMap(({ name, drained_at: at }) =>
      at === null ? [] : [[name, at.toISOString()] as const],
    )
    await announce(new Map(drained))
  }
}
