/**
 * Rate and memory with a small and a large view.
 *
 * The rate must not depend on the number of instances; memory does. Memory per instance is the difference in resident
 * memory between the two views, divided by the difference in instances. It is measured before any guest has sent a
 * request, and after every guest has read one leaf, which builds its tree. No garbage collection is forced: memory is
 * read after some idle seconds.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { request } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { addressOf, idOf, populate, USER_DATA_BYTES } from './population.ts'
import { residentMib, startImds, type Server } from './processes.ts'
import { medianOf, ratio, takeTurns } from './rounds.ts'
import type { Connections } from './wrk.ts'

const SMALL = 10
const LARGE = 10_000
const PATH = '/latest/meta-data/instance-id'
const MODES: readonly Connections[] = ['keep-alive', 'reconnect']
const IDLE_SECONDS = 10

/** Rate and memory with 10 and with 10,000 instances. */
export const views: Part = async ({ built, redisUrl, effort }) => {
  const envs = [await populate(redisUrl, 'small', SMALL), await populate(redisUrl, 'large', LARGE)]
  const small = await startImds(built, envs[0]!, SMALL)
  const large = await startImds(built, envs[1]!, LARGE)
  try {
    const withoutTrees = await idleMemory([small, large])
    await Promise.all([buildTrees(small, SMALL), buildTrees(large, LARGE)])
    const withTrees = await idleMemory([small, large])
    const rates = []
    for (const connections of MODES) {
      const [few = [], many = []] = await takeTurns([small, large], PATH, connections, effort)
      rates.push([
        connections,
        medianOf(few, 'requestsPerSecond').toFixed(0),
        medianOf(many, 'requestsPerSecond').toFixed(0),
        ratio(many, few, 'requestsPerSecond').toFixed(3),
        ratio(many, few, 'p99Ms').toFixed(2),
      ])
    }
    const perInstance = ([few = NaN, many = NaN]: readonly number[]) =>
      (((many - few) * 1024) / (LARGE - SMALL)).toFixed(1)
    return [
      {
        title: 'Rate by size of the view',
        columns: ['', `${SMALL} instances, requests/s`, `${LARGE} instances, requests/s`, 'ratio', 'ratio of p99'],
        rows: rates,
        notes: ['The aim: a ratio of at least 0.9.'],
      },
      {
        title: 'Memory by size of the view',
        columns: ['resident MiB', `${SMALL} instances`, `${LARGE} instances`, 'KiB per instance'],
        rows: [
          ['no guest has sent a request', ...withoutTrees.map((mib) => mib.toFixed(1)), perInstance(withoutTrees)],
          ['every guest has sent a request', ...withTrees.map((mib) => mib.toFixed(1)), perInstance(withTrees)],
        ],
        notes: [
          `Each instance has ${USER_DATA_BYTES} bytes of user-data, one interface and one key. Read from /proc after ${IDLE_SECONDS} s without a request.`,
        ],
      },
    ]
  } finally {
    await Promise.all([small.stop(), large.stop()])
  }
}

async function idleMemory(servers: readonly Server[]): Promise<number[]> {
  await sleep(IDLE_SECONDS * 1000)
  return servers.map(({ pid }) => residentMib(pid))
}

/** Sends one request as every guest. */
async function buildTrees({ port }: Server, instances: number): Promise<void> {
  for (let position = 0; position < instances; position++) {
    const { status, body } = await request(port, PATH, addressOf(position))
    if (status !== 200 || body.toString() !== idOf(position))
      throw new Error(`${addressOf(position)} did not get the id ${idOf(position)}`)
  }
}
