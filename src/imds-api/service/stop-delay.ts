/**
 * The time between a signal to stop and the end of the listeners (IMDS_API_STOP_DELAY_SECONDS). A proxy sees in /readyz
 * that this process stops, and sends requests elsewhere. Until then requests are answered, and each response ends its
 * connection.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'

export class StopDelay {
  #hasBegun = false

  /** True from the signal on. */
  get hasBegun(): boolean {
    return this.#hasBegun
  }

  /** Lets the responses of a server end their connections once the delay has begun. */
  watch({ server }: Pick<FastifyInstance, 'server'>): void {
    server.prependListener('request', (_request: IncomingMessage, response: ServerResponse) => {
      if (this.#hasBegun) response.setHeader('Connection', 'close')
    })
  }

  /** Begins the delay, and resolves at its end. */
  async run(seconds: number): Promise<void> {
    this.#hasBegun = true
    if (seconds > 0) await sleep(seconds * 1_000)
  }
}
