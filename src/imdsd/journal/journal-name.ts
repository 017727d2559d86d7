/** The name of the journal: a rewritten journal gets it, and a journal that is given up loses it. */
import type { Disk } from './disk.ts'
import type { StaleMark } from './stale-mark.ts'
import { temporaryOf } from './state-files.ts'

export class JournalName {
  readonly #disk: Disk
  readonly #path: string
  readonly #stale: StaleMark
  /** A rewritten journal is getting the name. It may still get it after that took too long. */
  #giving: Promise<void> | undefined

  constructor(disk: Disk, path: string, stale: StaleMark) {
    this.#disk = disk
    this.#path = path
    this.#stale = stale
  }

  /** Gives the rewritten journal its name. If that fails or takes too long, `delete` must follow. */
  async give(): Promise<void> {
    const giving = (async () => {
      await this.#disk.rename(temporaryOf(this.#path), this.#path)
      await this.#disk.syncDirectory(this.#path)
    })()
    this.#giving = giving
    await giving
    if (this.#giving !== giving) return // too late
    this.#giving = undefined
    this.#stale.clear()
  }

  /** Deletes the journal, also a journal that gets its name late. Marks it before, since that may fail. */
  async delete(): Promise<void> {
    const giving = this.#giving
    this.#giving = undefined
    this.#stale.set()
    await this.#remove()
    if (giving === undefined) return
    await giving.catch(() => undefined) // then there is no journal
    await this.#remove()
  }

  async #remove(): Promise<void> {
    await this.#disk.remove(this.#path)
    await this.#disk.syncDirectory(this.#path)
  }
}
