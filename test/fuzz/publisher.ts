/** Publishes mutated files to the file store while guests send requests. */
import { renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { diceOf } from './dice.ts'
import type { FuzzHost } from './host.ts'
import { mutatedFile } from './records.ts'

/** The number of written files, and the failures. */
export interface PublisherReport {
  readonly written: number
  readonly failures: readonly string[]
}

const IDS = Array.from({ length: 16 }, (_, i) => `srv-m${i}`)
const INTERVAL_MS = 10
/** Added to the seed, so that this run has its own generators (see KINDS in pure.ts). */
const PUBLISHER = 4

/** Writes mutated files until it is stopped, then valid ones, all of which the daemon must serve. */
export function startPublisher({ daemon, store }: FuzzHost, seed: number): { stop(): Promise<PublisherReport> } {
  let [written, stopped] = [0, false]
  const put = (id: string, ending: string, bytes: Buffer | string) => {
    for (const other of ['.json', '.yaml']) if (other !== ending) rmSync(join(store, id + other), { force: true })
    writeFileSync(join(store, 'next'), bytes)
    renameSync(join(store, 'next'), join(store, id + ending))
  }
  const work = async () => {
    while (!stopped) {
      const { ending, bytes } = mutatedFile(diceOf(seed + PUBLISHER, written))
      const id = IDS[written++ % IDS.length]!
      put(id, ending, Buffer.from(bytes.toString('latin1').replace(/"id":"srv-[^"]*"/, `"id":"${id}"`), 'latin1'))
      await sleep(INTERVAL_MS)
    }
  }
  const working = work()
  return {
    stop: async () => {
      stopped = true
      await working
      const address = (i: number) => `127.2.0.${i}/8`
      IDS.forEach((id, i) => {
        put(
          id,
          '.json',
          JSON.stringify(
            anInstance({
              id,
              fqdn: `${id}.good.example.com`,
              interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address(i)] }],
            }),
          ),
        )
      })
      const isServed = async (id: string, i: number) =>
        (await daemon.get('/latest/meta-data/hostname', address(i).slice(0, -2))).body.toString() ===
        `${id}.good.example.com`
      const failures: string[] = []
      for (const [i, id] of IDS.entries())
        await until(() => isServed(id, i), `the valid record of ${id}`).catch((error: unknown) => {
          failures.push(String(error))
        })
      return { written, failures }
    },
  }
}
