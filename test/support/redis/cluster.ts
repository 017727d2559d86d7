/** A real Redis Cluster of three primaries, and a replica of the one that has the region gb1. */
import type { Test } from 'tap'
import { until } from '../programs/daemon.ts'
import { freePort, startRedis, type TestRedis } from './redis.ts'

/** A cluster that stops with the test. */
export interface TestCluster {
  /** A `redis-cluster:` URL of all nodes except the one that has the region, so that a client must discover it. */
  readonly url: string
  /** The primary that has the region at first, its replica, and another primary, to which the region can be moved. */
  readonly owner: TestRedis
  readonly replica: TestRedis
  readonly other: TestRedis
  /** Begins to move the region's slot from `owner` to `other`: moves every second key. */
  moveHalf(): Promise<void>
  /** Moves the other keys, then the slot. */
  moveRest(): Promise<void>
}

const SLOTS = 16384
const NODE_TIMEOUT_MS = 1000

/** Starts a cluster and waits until all nodes agree on it. */
export async function startCluster(t: Test): Promise<TestCluster> {
  const nodes: TestRedis[] = []
  for (let i = 0; i < 4; i++) {
    const bus = String(await freePort())
    nodes.push(
      await startRedis(t, [
        '--cluster-enabled',
        'yes',
        '--cluster-port',
        bus,
        '--cluster-node-timeout',
        String(NODE_TIMEOUT_MS),
        '--repl-diskless-sync-delay',
        '0',
      ]),
    )
    await nodes[i]!.client.call('CLUSTER', 'SET-CONFIG-EPOCH', String(i + 1))
    if (i > 0) await nodes[0]!.client.call('CLUSTER', 'MEET', '127.0.0.1', String(nodes[i]!.port), bus)
  }
  const share = Math.ceil(SLOTS / 3)
  for (let i = 0; i < 3; i++)
    await nodes[i]!.client.call(
      'CLUSTER',
      'ADDSLOTSRANGE',
      String(i * share),
      String(Math.min((i + 1) * share, SLOTS) - 1),
    )
  const slot = Number(await nodes[0]!.client.call('CLUSTER', 'KEYSLOT', 'imds:{gb1}'))
  const [owner, other] = [nodes[Math.floor(slot / share)]!, nodes[(Math.floor(slot / share) + 1) % 3]!]
  const replica = nodes[3]!
  const idOf = async (node: TestRedis) => String(await node.client.call('CLUSTER', 'MYID'))
  const info = async (node: TestRedis) => String(await node.client.call('CLUSTER', 'INFO'))
  await until(
    async () =>
      (await Promise.all(nodes.map(info))).every(
        (text) => text.includes('cluster_state:ok') && text.includes('cluster_known_nodes:4'),
      ),
    'the nodes to agree',
  )
  const ownerId = await idOf(owner)
  await replica.client.call('CLUSTER', 'REPLICATE', ownerId)
  await until(
    async () => (await replica.client.info('replication')).includes('master_link_status:up'),
    'the replica to be synchronised',
  )
  await until(
    async () =>
      (
        await Promise.all(nodes.map((node) => node.client.call('CLUSTER', 'REPLICAS', ownerId) as Promise<string[]>))
      ).every(({ length }) => length === 1),
    'all nodes to know the replica',
  )

  const setSlot = (node: TestRedis, ...args: string[]) => node.client.call('CLUSTER', 'SETSLOT', String(slot), ...args)
  const move = async (keys: readonly string[]) => {
    if (keys.length > 0)
      await owner.client.call('MIGRATE', '127.0.0.1', String(other.port), '', '0', '5000', 'KEYS', ...keys)
  }
  const keys = async () => (await owner.client.call('CLUSTER', 'GETKEYSINSLOT', String(slot), '10000')) as string[]
  return {
    url: `redis-cluster://${nodes
      .filter((node) => node !== owner)
      .map(({ port }) => `127.0.0.1:${port}`)
      .join()}`,
    owner,
    replica,
    other,
    moveHalf: async () => {
      await setSlot(other, 'IMPORTING', ownerId)
      await setSlot(owner, 'MIGRATING', await idOf(other))
      await move((await keys()).sort().filter((_key, i) => i % 2 === 0))
    },
    moveRest: async () => {
      await move(await keys())
      for (const node of [other, owner]) await setSlot(node, 'NODE', await idOf(other))
    },
  }
}
