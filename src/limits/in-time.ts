/** Bounds how long work may take, such as that of a disk or a store. */
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Settles as `work` does, but rejects when it takes longer than `timeoutMs`. With `steps`, the time starts again as
 * long as that number grows.
 */
export async function inTime<T>(work: Promise<T>, timeoutMs: number, steps: () => number = () => 0): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const tooLate = new Promise<never>((_resolve, reject) => {
    const wait = (seen: number) => {
      timer = setTimeout(() => {
        const now = steps()
        if (now > seen) wait(now)
        else reject(new Error(`no answer within ${timeoutMs} ms`))
      }, timeoutMs)
    }
    wait(steps())
  })
  try {
    return await Promise.race([work, tooLate])
  } finally {
    clearTimeout(timer)
  }
}

/** Waits for work, which may continue after the time. */
export async function waitAtMost(work: Promise<unknown>, timeoutMs: number): Promise<void> {
  await Promise.race([work, sleep(timeoutMs, undefined, { ref: false })])
}
