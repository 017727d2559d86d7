/**
 * The mark that guests get more than the journal has: set while it cannot be kept. A start serves nothing from a
 * journal with this mark, also if a disk that refused to change and to delete it works again.
 *
 * It is beside the unix socket for operators, and so in memory (/run): it outlives the daemon, and ends with a reboot
 * of the hypervisor, as all guests and rules do.
 */
import { existsSync, rmSync, writeFileSync } from 'node:fs'

export class StaleMark {
  readonly #path: string

  constructor(operatorSocket: string) {
    this.#path = `${operatorSocket}.stale-view`
  }

  get isSet(): boolean {
    return existsSync(this.#path)
  }

  /** Sets the mark, unless its directory refuses that as well. */
  set(): void {
    try {
      writeFileSync(this.#path, '', { flag: 'wx', mode: 0o600 }) // which follows no link
    } catch {
      /* most often it is set already */
    }
  }

  clear(): void {
    rmSync(this.#path, { force: true })
  }
}
