/**
 * What does a large view cost?
 *
 * The rate must not depend on the number of instances; memory does. Memory per instance is what a large view adds to a small one's
 * resident memory, by the difference in instances: once before any guest has asked, once after every guest has asked for one leaf,
 * which builds its tree. Nothing is forced: the daemon is left alone until its memory stands still.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { request } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { addressOf, idOf, populate, USER_DATA_BYTES } from './population.ts'
import { residentMib, startImds, type Server } from './processes.ts'
import { disturbance, middle, ratio, takeTurns } from './rounds.ts'
import type { Connections } from './wrk.ts'

const SMALL = 10
const LARGE = 10_000
const PATH = '/latest/meta-data/instance-id'
const MODES: readonly Connections[] = ['keep-alive', 'reconnect']
const QUIET_SECONDS = 10

/** Rate and memory with 10 and with 10,000 instances. */
export const views: Part = async ({ built, redisUrl, effort }) => {
  const envs = [await populate(redisUrl, 'small', SMALL), await populate(redisUrl, 'large', LARGE)]
  const small = await startImds(built, envs[0]!, SMALL)
  const large = await startImds(built, envs[1]!, LARGE)
  try {
    const unbuilt = await quietMemory([small, large])
    await Promise.all([askAll(small, SMALL), askAll(large, LARGE)])
    const asked = await quietMemory([small, large])
    const rates = []
    for (const connections of MODES) {
      const [few = [], many = []] = await takeTurns([small, large], PATH, connections, effort)
      rates.push([connections, middle(few, 'requestsPerSecond').toFixed(0), middle(many, 'requestsPerSecond').toFixed(0),
        ratio(many, few, 'requestsPerSecond').toFixed(3), ratio(many, few, 'p99Ms').toFixed(2), disturbance(few)])
    }
    const perInstance = ([few = NaN, many = NaN]: readonly number[]) => ((many - few) * 1024 / (LARGE - SMALL)).toFixed(1)
    return [{
      title: 'Rate by size of the view',
      columns: ['', `${String(SMALL)} instances, requests/s`, `${String(LARGE)} instances, requests/s`, 'ratio', 'ratio of p99', 'others'],
      rows: rates,
      notes: ['The aim: a ratio of at least 0.9.'],
    }, {
      title: 'Memory by size of the view',
      columns: ['resident MiB', `${String(SMALL)} instances`, `${String(LARGE)} instances`, 'KiB per instance'],
      rows: [['no guest has asked', ...unbuilt.map((mib) => mib.toFixed(1)), perInstance(unbuilt)], ['every guest has asked', ...asked.map((mib) => mib.toFixed(1)), perInstance(asked)]],
      notes: [`Each instance has ${String(USER_DATA_BYTES)} bytes of user-data, one interface and one key. Read from /proc after ${String(QUIET_SECONDS)} s without a request.`],
    }]
  } finally {
    await Promise.all([small.stop(), large.stop()])
  }
}

async function quietMemory(servers: readonly Server[]): Promise<number[]> {
  await sleep(QUIET_SECONDS * 1000)
  return servers.map(({ pid }) => residentMib(pid))
}

async function askAll({ port }: Server, instances: number): Promise<void> {
  for (let position = 0; position < instances; position++) {
    const { status, body } = await request(port, PATH, addressOf(position))
    if (status !== 200 || body.toString() !== idOf(position)) throw new Error(`${addressOf(position)} is not told that it is ${idOf(position)}`)
  }
}
