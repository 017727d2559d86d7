/** Listens on a channel of PostgreSQL, on a connection of its own, and listens again when that breaks. */
import type pg from 'pg'
import { setTimeout as sleep } from 'node:timers/promises'

const RETRY_MS = 1_000

/**
 * One listener. `notified` is called for each notification, and with an empty payload after each connect, because some
 * may have been lost before.
 */
export class NotificationListener {
  readonly #connect: () => Promise<pg.Client>
  readonly #channel: string
  readonly #notified: (payload: string) => void
  readonly #stopping = new AbortController()
  #client: pg.Client | undefined
  #running: Promise<void> = Promise.resolve()

  constructor(connect: () => Promise<pg.Client>, channel: string, notified: (payload: string) => void) {
    this.#connect = connect
    this.#channel = channel
    this.#notified = notified
  }

  start(): void {
    this.#running = this.#run()
  }

  /** Ends after `stop`. It does not report an unreachable database: the parts that query it do. */
  async #run(): Promise<void> {
    while (!this.#hasToStop()) {
      try {
        const client = await this.#connect()
        this.#client = client
        const ended = new Promise<void>((resolve) => {
          client.on('end', resolve).on('error', () => {
            resolve()
          })
        })
        client.on('notification', ({ payload = '' }) => {
          this.#notified(payload)
        })
        await client.query(`listen ${this.#channel}`)
        this.#notified('')
        if (this.#hasToStop()) await client.end() // `stop` came before this connection
        await ended
      } catch {
        /* the database is unreachable */
      }
      await this.#client?.end().catch(() => undefined) // closed already
      await sleep(RETRY_MS, undefined, { signal: this.#stopping.signal }).catch(() => undefined) // stopped
    }
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#client?.end().catch(() => undefined) // closed already
    await this.#running
  }

  /** A method, because TypeScript does not see that `stop` changes the field meanwhile. */
  #hasToStop(): boolean {
    return this.#stopping.signal.aborted
  }
}
