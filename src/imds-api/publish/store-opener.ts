/**
 * Opens a store at its first use, so that imds-api starts while Redis is unreachable. If that fails, the next use tries
 * again.
 */
import type { Publisher } from '../../store/publisher.ts'

export class StoreOpener {
  readonly #openStore: () => Promise<Publisher>
  #opened: Promise<Publisher> | undefined

  constructor(openStore: () => Promise<Publisher>) {
    this.#openStore = openStore
  }

  /** Opens the store unless it is open. Rejects as `openStore` does. */
  async open(): Promise<Publisher> {
    this.#opened ??= this.#openStore()
    try {
      return await this.#opened
    } catch (error) {
      this.#opened = undefined
      throw error
    }
  }

  async close(): Promise<void> {
    await (await this.#opened?.catch(() => undefined))?.close()
  }
}
