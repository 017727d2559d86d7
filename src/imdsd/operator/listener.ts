/**
 * A listener of operators. If it cannot open, for example because another program has its port, it is tried again until
 * it is open: guests must not lose their metadata because operators cannot look in.
 */
import type { FastifyInstance } from 'fastify'
import { mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import type { HostPort, ListenAddress, UnixSocket } from '../../runtime/host-port.ts'
import { opener } from '../../runtime/listen.ts'

const RETRY_MS = 5_000

/** What a listener depends on. `listener`: where it should listen, which `variable` says. */
interface OperatorListenerParts<Where extends ListenAddress> {
  readonly server: FastifyInstance
  readonly listener: Where
  readonly variable: string
}

export class OperatorListener<Where extends HostPort | UnixSocket> {
  readonly #parts: OperatorListenerParts<Where>
  #address: Where | undefined
  #problem: string | undefined
  #retry: NodeJS.Timeout | undefined
  #attempt = Promise.resolve()
  #isStopped = false

  constructor(parts: OperatorListenerParts<Where>) {
    this.#parts = parts
  }

  /** Where it listens, with its actual port; undefined while it is not open. */
  get address(): Where | undefined {
    return this.#address
  }

  /** Why it is not open, with the variable and the remedy; undefined if it is open. */
  get problem(): string | undefined {
    return this.#problem
  }

  /** Tries to open, again every RETRY_MS. */
  async start(): Promise<void> {
    const { server, listener, variable } = this.#parts
    const open = await opener(server, listener, variable)
    await this.#try(open)
  }

  /** Ends the retries, and closes the server. */
  async stop(): Promise<void> {
    this.#isStopped = true
    clearTimeout(this.#retry)
    await this.#attempt
    await this.#parts.server.close()
  }

  async #try(open: () => Promise<ListenAddress>): Promise<void> {
    const { listener } = this.#parts
    try {
      if (listener.path !== undefined) makeDirectoryOf(listener.path)
      this.#address = (await open()) as Where
      this.#problem = undefined
    } catch (error) {
      const reason = (error as Error).message
      this.#problem = reason
      if (!this.#isStopped)
        this.#retry = setTimeout(() => {
          this.#attempt = this.#try(open)
        }, RETRY_MS)
    }
  }
}

/**
 * Creates the directory of a unix socket if it is missing, for its owner and its group. If that fails, listening fails
 * with the remedy. Not recursive: below /proc, Node's recursive mkdirSync never returns.
 */
function makeDirectoryOf(path: string): void {
  try {
    mkdirSync(dirname(path), { mode: 0o750 })
  } catch {
    /* listening reports it */
  }
}
