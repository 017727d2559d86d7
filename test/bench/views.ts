/**
 * Memory with a small and a large view.
 *
 * Memory per instance is the difference in resident
 * memory between the two views, divided by the difference in instances. It is measured before any guest has sent a
 * request, and after every guest has read one leaf, which builds its tree. No garbage collection is forced: memory is
 * read after some idle seconds.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { request } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { addressOf, idOf, populate, USER_DATA_BYTES } from './population.ts'
import { residentMib, startImds, type Server } from './processes.ts'

const SMALL = 10
const LARGE = 10_000
const PATH = '/latest/meta-data/instance-id'
const IDLE_SECONDS = 10

/** Memory with 10 and with 10,000 instances. */
export const views: Part = async ({ built, redisUrl }) => {
  const envs = [await populate(redisUrl, 'small', SMALL), await populate(redisUrl, 'large', LARGE)]
  const small = await startImds(built, envs[0]!, SMALL)
  const large = await startImds(built, envs[1]!, LARGE)
  try {
    const withoutTrees = await idleMemory([small, large])
    await Promise.all([buildTrees(small, SMALL), buildTrees(large, LARGE)])
    const withTrees = await idleMemory([small, large])
    const perInstance = ([few = NaN, many = NaN]: readonly number[]) =>
      (((many - few) * 1024) / (LARGE - SMALL)).toFixed(1)
    return [
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
