/** Requests at a fixed rate, whether those before them have been answered or not. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Wire } from './wire.ts'

/** Who sends which request, and from which address. */
export interface Caller {
  readonly address: string
  readonly request: string
}
/**
 * Of the requests that got 200, in ms: `answered`, from sending one to its response; `late`, from when it was due to its
 * response. `status` 0: the connection ended.
 */
export interface Offered {
  readonly answered: readonly number[]
  readonly late: readonly number[]
  readonly statuses: ReadonlyMap<number, number>
}

/** The most connections of a caller: as many as imds-api accepts of an address. What has none is sent when one is free. */
const CONNECTIONS = 256
const TICK_MS = 5

/** Sends `perSecond` requests a second in all. The callers take turns. Waits for all responses. */
export async function offer(
  port: number,
  callers: readonly Caller[],
  perSecond: number,
  seconds: number,
): Promise<Offered> {
  const [answered, late]: [number[], number[]] = [[], []]
  const statuses = new Map<number, number>()
  const queues = callers.map(({ address, request }) => {
    const due: number[] = []
    const idle: (() => void)[] = []
    let [open, isOver] = [0, false as boolean]
    const running: Promise<void>[] = []
    const serve = async () => {
      let wire = await Wire.open(port, address)
      while (!isOver || due.length > 0) {
        const dueMs = due.shift()
        if (dueMs === undefined) {
          await new Promise<void>((resolve) => idle.push(resolve))
          continue
        }
        const { status, ms } = await wire.ask(request)
        statuses.set(status, (statuses.get(status) ?? 0) + 1)
        if (status === 200) {
          answered.push(ms)
          late.push(performance.now() - dueMs)
        }
        if (!wire.isOpen) wire = await Wire.open(port, address)
      }
      wire.end()
    }
    return {
      add: (dueMs: number) => {
        due.push(dueMs)
        const next = idle.pop()
        if (next !== undefined) next()
        else if (open < CONNECTIONS) {
          open++
          running.push(serve())
        }
      },
      end: async () => {
        isOver = true
        for (const next of idle) next()
        await Promise.all(running)
      },
    }
  })
  const startedMs = performance.now()
  for (let sent = 0; sent < perSecond * seconds;) {
    const elapsedMs = performance.now() - startedMs
    for (; sent < Math.min(perSecond * seconds, (elapsedMs * perSecond) / 1000); sent++)
      queues[sent % queues.length]!.add(startedMs + (sent * 1000) / perSecond)
    await sleep(TICK_MS)
  }
  await Promise.all(queues.map((queue) => queue.end()))
  return { answered, late, statuses }
}
