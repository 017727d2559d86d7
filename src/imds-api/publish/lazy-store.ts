/**
 * A store that is opened at its first use, so that imds-api starts while Redis is unreachable. If that fails, the next
 * use tries again.
 */
import type { Fleet } from '../../store/fleet.ts'
import type { Publisher } from '../../store/publisher.ts'

/** Opens at most one store. */
export class LazyStore implements Pick<
  Publisher,
  'initialise' | 'get' | 'list' | 'reports' | 'reportsOf' | 'put' | 'remove' | 'unannounced' | 'hypervisors' | 'close'
> {
  readonly #openStore: () => Promise<Publisher>
  #opened: Promise<Publisher> | undefined

  constructor(openStore: () => Promise<Publisher>) {
    this.#openStore = openStore
  }

  /** Opens the store unless it is open. Rejects as `openStore` does; the next call tries again. */
  async open(): Promise<Publisher> {
    this.#opened ??= this.#openStore()
    try {
      return await this.#opened
    } catch (error) {
      this.#opened = undefined
      throw error
    }
  }

  async initialise(): Promise<boolean> {
    return (await this.open()).initialise()
  }

  async get(id: string): ReturnType<Publisher['get']> {
    return (await this.open()).get(id)
  }

  async reports(id: string): ReturnType<Publisher['reports']> {
    return (await this.open()).reports(id)
  }

  async reportsOf(ids: readonly string[]): ReturnType<Publisher['reportsOf']> {
    return (await this.open()).reportsOf(ids)
  }

  async list(): ReturnType<Publisher['list']> {
    return (await this.open()).list()
  }

  async put(...args: Parameters<Publisher['put']>): ReturnType<Publisher['put']> {
    return (await this.open()).put(...args)
  }

  async remove(...args: Parameters<Publisher['remove']>): ReturnType<Publisher['remove']> {
    return (await this.open()).remove(...args)
  }

  async unannounced(names: readonly string[]): Promise<readonly string[]> {
    return (await this.open()).unannounced(names)
  }

  async hypervisors(names?: readonly string[]): ReturnType<Publisher['hypervisors']> {
    return (await this.open()).hypervisors(names)
  }

  /** Announces this imds-api, as Fleet.announceControlPlane does. */
  async announce(...args: Parameters<Fleet['announceControlPlane']>): Promise<void> {
    await (await this.open()).fleet.announceControlPlane(...args)
  }

  /** Makes this the region of a database, as Fleet.claim does. */
  async claim(...args: Parameters<Fleet['claim']>): ReturnType<Fleet['claim']> {
    return (await this.open()).fleet.claim(...args)
  }

  /** Whether the store may have lost something, as Fleet.state says. */
  async state(): ReturnType<Fleet['state']> {
    return (await this.open()).fleet.state()
  }

  /** As Fleet.markComplete does. */
  async markComplete(history: string): Promise<void> {
    await (await this.open()).fleet.markComplete(history)
  }

  async close(): Promise<void> {
    await (await this.#opened?.catch(() => undefined))?.close()
  }
}
