/**
 * The level of the log, which an operator can change for some time. It then returns by itself to the configured one, so
 * that nobody forgets a log of every request.
 */
import { formatDuration } from './ago.ts'
import type { Log } from './log-codes.ts'

/** The values of IMDS_LOG_LEVEL, the quietest first. log.ts says what each shows. */
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]

/** The level now and the configured one. `until`: when it returns to that (ISO 8601); absent: it is that one. */
export interface LogLevelState<Level extends string = LogLevel> {
  readonly level: Level
  readonly configured: Level
  readonly until?: string
}

/** `info`, or `debug for 10 min more, then info`. */
export function formatLevel({ level, configured, until }: LogLevelState<string>, nowMs: number): string {
  if (until === undefined) return level
  const seconds = Math.ceil((Date.parse(until) - nowMs) / 1000)
  return `${level} for ${formatDuration(seconds)} more, then ${configured}`
}

/** How long a level lasts by default, and at most, in seconds. */
export const LEVEL_SECONDS = { default: 600, max: 86_400 } as const

export class AdjustableLevel {
  readonly #log: Pick<Log, 'level' | 'info'>
  readonly #configured: LogLevel
  #state: LogLevelState
  #timer: NodeJS.Timeout | undefined

  constructor(log: Pick<Log, 'level' | 'info'>, configured: LogLevel) {
    this.#log = log
    this.#configured = configured
    this.#state = { level: configured, configured }
  }

  get state(): LogLevelState {
    return this.#state
  }

  /** Sets a level for some seconds. The configured one stays. */
  set(level: LogLevel, seconds: number): LogLevelState {
    clearTimeout(this.#timer)
    const configured = this.#configured
    if (level === configured) {
      this.#change({ level, configured }, 'the log has its configured level again')
    } else {
      const until = new Date(Date.now() + seconds * 1000).toISOString()
      this.#change({ level, configured, until }, 'an operator changed the level of the log')
      this.#timer = setTimeout(() => this.set(configured, 0), seconds * 1000).unref()
    }
    return this.#state
  }

  #change(state: LogLevelState, message: string): void {
    const [now, next] = [this.#log.level, state.level].map((level) => LOG_LEVELS.indexOf(level as LogLevel))
    // The line is written at the level that shows more.
    if (next! > now!) this.#log.level = state.level
    this.#log.info({ logLevel: state.level, until: state.until }, message)
    this.#log.level = state.level
    this.#state = state
  }
}
