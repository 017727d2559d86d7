/** A guest that asks while a daemon does something else, and the turns of that daemon (turns.ts). */
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { Agent, get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { until } from '../support/programs/daemon.ts'

/** The leaf that the guest reads. */
export const PATH = '/latest/meta-data/instance-id'
/** The arguments of Node.js with which a daemon measures its turns. */
export const TURNS = [
  '--disable-warning=ExperimentalWarning',
  '--import',
  new URL('turns.ts', import.meta.url).pathname,
]
/**
 * The pause between two requests of the guest. Without it most turns would be responses, and the quantiles would hide
 * the long turns.
 */
const PAUSE_MS = 3

/** The turns of a measurement that has ended, in milliseconds of CPU time. */
export async function turnsOf(file: string): Promise<readonly number[]> {
  await until(() => existsSync(file), 'the turns')
  const turns = JSON.parse(readFileSync(file, 'utf8')) as number[]
  rmSync(file)
  return turns
}

/** The guest at 127.0.0.1, with one keep-alive connection. */
export class AskingGuest {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 })
  readonly #port: number

  constructor(port: number) {
    this.#port = port
  }

  /** Sends a request every few milliseconds while the task runs. */
  async during(task: () => Promise<unknown>): Promise<void> {
    let isOver = false as boolean // TypeScript does not see that the task's end sets it
    const over = () => {
      isOver = true
    }
    const done = task()
    done.then(over, over)
    while (!isOver) {
      await this.#request()
      await sleep(PAUSE_MS)
    }
    await done
  }

  close(): void {
    this.#agent.destroy()
  }

  #request(): Promise<void> {
    return new Promise((resolve, reject) => {
      get({ host: '127.0.0.1', port: this.#port, path: PATH, agent: this.#agent }, (response) => {
        if (response.statusCode !== 200) reject(new Error(`the guest got ${String(response.statusCode)}`))
        response.resume().on('end', resolve).on('error', reject)
      }).on('error', reject)
    })
  }
}
