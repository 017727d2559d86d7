/**
 * Guests that boot: each reads its whole tree and its user-data, with one connection per request as cloud-init does,
 * and boots again every second. Usage: `booters.ts PORT ADDRESS...`. Prints the figures of all guests as JSON when its
 * input ends.
 */
import { request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { crawl } from '../fixtures/crawl.ts'
import type { Answer } from './daemon.ts'

/** The figures of all guests together. `failed` counts the requests without a 200 by status or error code. */
export interface BootFigures {
  readonly boots: number
  readonly requests: number
  readonly latenciesMs: readonly number[]
  readonly failed: Readonly<Record<string, number>>
}

const [, , port, ...addresses] = process.argv
/** The shortest timeout of cloud-init's clients. */
const TIMEOUT_MS = 5_000
const BOOT_EVERY_MS = 1_000

const latenciesMs: number[] = []
const failed: Record<string, number> = {}
let boots = 0
let isOver = false

async function get(path: string, localAddress: string): Promise<Answer> {
  const startedMs = performance.now()
  const answer = await new Promise<Answer>((resolve) => {
    const fail = (error: Error) => {
      resolve({ status: 0, headers: {}, body: Buffer.from((error as NodeJS.ErrnoException).code ?? error.message) })
    }
    const asked = request(
      { host: '127.0.0.1', port, path, localAddress, agent: false, timeout: TIMEOUT_MS },
      (response) => {
        response.toArray().then((chunks) => {
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            body: Buffer.concat(chunks as Buffer[]),
          })
        }, fail)
      },
    )
    asked
      .on('error', fail)
      .on('timeout', () => asked.destroy(new Error('no answer')))
      .end()
  })
  latenciesMs.push(performance.now() - startedMs)
  if (answer.status !== 200) {
    const what = answer.status === 0 ? answer.body.toString() : String(answer.status)
    failed[what] = (failed[what] ?? 0) + 1
  }
  return answer
}

const work = addresses.map(async (address, i) => {
  await sleep((BOOT_EVERY_MS * i) / addresses.length)
  while (!isOver) {
    const next = sleep(BOOT_EVERY_MS)
    await crawl('latest', (path) => get(path, address))
    boots += 1
    await next
  }
})
process.stdin.resume().on('end', () => {
  isOver = true
  void Promise.all(work).then(() => {
    console.log(JSON.stringify({ boots, requests: latenciesMs.length, latenciesMs, failed } satisfies BootFigures))
    process.exit()
  })
})
console.log('up')
