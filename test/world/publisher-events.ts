/** What happens in the publishers' world. All choices of an event come from its own dice. */
import { giveOutActions, reportOutcome } from '../../src/imds-api/changes/action-queue.ts'
import { createCloudIp, mapCloudIp, unmapCloudIp } from '../../src/imds-api/changes/cloud-ips.ts'
import { createServer } from '../../src/imds-api/changes/create-server.ts'
import { updateGroup } from '../../src/imds-api/changes/server-groups.ts'
import { beginLiveMigration, endLiveMigration } from '../../src/imds-api/changes/server-placement.ts'
import { deleteServer, lockServer, updateServer } from '../../src/imds-api/changes/server-requests.ts'
import { enqueueRebuild } from '../../src/imds-api/changes/servers.ts'
import type { Tx } from '../../src/imds-api/database/transaction.ts'
import type { Dice } from '../fuzz/dice.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import type { Life, PublisherWorld, ServerRow } from './publisher.ts'

interface Happens {
  readonly world: PublisherWorld
  readonly dice: Dice
  /** A process. */
  readonly life: Life
  /** A server, which may be deleted. */
  readonly server: ServerRow | undefined
}
/** Does it, and returns its words; undefined: it cannot happen. */
type Event = (happens: Happens) => string | undefined

type Change = (tx: Tx, server: ServerRow, dice: Dice, world: PublisherWorld) => Promise<unknown>

/** Makes a change of a server by a process. */
const changing =
  (words: string, change: Change): Event =>
  ({ world, dice, life, server }) => {
    if (server === undefined) return undefined
    const text = `${words} ${server.id}`
    world.run(life, text, () =>
      life.accounts.commitInAnyState(server.account_id, (tx) => change(tx, server, dice, world)),
    )
    return `${life.name} ${text}`
  }

export const NEW_SERVER = {
  ...{ image: 'img-deb12', serverType: undefined, zone: undefined },
  ...{ cloudIp: false, diskEncrypted: false, waitFor: undefined },
}

const create: Event = ({ world, dice, life }) => {
  const account = dice.pick([ONE, TWO])
  const asked = { ...NEW_SERVER, cloudIp: dice.chance(0.3) }
  world.run(life, 'create a server', () =>
    life.accounts.commitInAnyState(account, (tx) => createServer(tx, world.compute, account, asked)),
  )
  return `${life.name} creates a server`
}

const update = changing('update', async (tx, { account_id: account, id }, dice) => {
  const text = String(dice.below(1_000_000))
  const values = dice.chance(0.5) ? { tags: { Name: text } } : { user_data: Buffer.from(text).toString('base64') }
  await updateServer(tx, await lockServer(tx, account, id), values)
})

const remove = changing('delete', (tx, { account_id: account, id }, _, { compute }) =>
  deleteServer(tx, compute, account, id),
)

const migrate: Event = ({ world, life, server }) => {
  if (server === undefined) return undefined
  const parts = { db: life.db, accounts: life.accounts, retrySeconds: 30 }
  const other = server.hypervisor === 'hv-1' ? 'hv-2' : 'hv-1'
  const words = `${server.migrating_to === null ? 'begin' : 'end'} the migration of ${server.id}`
  world.run(life, words, () =>
    server.migrating_to === null
      ? beginLiveMigration(parts, server.id, other, () => true)
      : endLiveMigration(parts, server.id, () => true),
  )
  return `${life.name} ${words}`
}

const map = changing('map or unmap a cloud IP of', async (tx, { account_id: account, id }) => {
  const ips = await tx.selectFrom('cloud_ips').select(['id', 'status']).where('account_id', '=', account).execute()
  const free = ips.find(({ status }) => status === 'unmapped')
  const mapped = ips.find(({ status }) => status === 'mapped')
  if (free !== undefined || mapped === undefined)
    await mapCloudIp(tx, account, free?.id ?? (await createCloudIp(tx, account)), id)
  else await unmapCloudIp(tx, account, mapped.id)
})

const rename = changing('rename the group of', async (tx, { account_id: account }, dice) => {
  const group = await tx
    .selectFrom('server_groups')
    .select('id')
    .where('account_id', '=', account)
    .executeTakeFirstOrThrow()
  await updateGroup(tx, account, group.id, { name: String(dice.below(1_000_000)) })
})

/** The agents of all hypervisors get their actions and report outcomes. */
const compute: Event = ({ world, dice, life }) => {
  if (world.compute === 'none') return undefined
  for (const hypervisor of ['hv-1', 'hv-2', 'hv-3'])
    world.run(life, `serve the agent of ${hypervisor}`, async () => {
      for (const { id } of await giveOutActions(life.db, hypervisor, 30)) {
        const outcome = dice.chance(0.9) ? 'succeeded' : 'failed'
        await reportOutcome(life.db, life.accounts, hypervisor, id, { outcome, fault: null })
      }
    })
  return `${life.name} serves the agents of the hypervisors`
}

const rebuild: Event = ({ world, life }) => {
  world.run(life, 'begin a rebuild', () => life.db.transaction().execute(enqueueRebuild))
  return `${life.name} begins a rebuild`
}

const seal: Event = ({ world, life, server }) => {
  if (server === undefined) return undefined
  world.sealed.add(server.id)
  world.run(life, `seal ${server.id}`, () => life.store.seal(server.id))
  return `an operator seals ${server.id} in the store`
}

const kill: Event = ({ world, life }) => {
  world.kill(life)
  return `${life.name} is killed`
}

const cut: Event = ({ world, life }) => {
  world.cut(life)
  return `PostgreSQL ends connections of ${life.name}`
}

const suspend: Event = ({ world, life, dice }) => {
  life.resumesAtMs = world.time.nowMs + dice.below(5_000)
  return `${life.name} is suspended for a while`
}

const replicate: Event = ({ world: { store } }) => {
  store.replicate()
  return 'the replica has everything'
}

const replace: Event = ({ world: { store }, dice }) => {
  const by = dice.chance(0.8) ? 'the replica' : 'an empty server'
  store.replacePrimary(by, dice.chance(0.5) ? 0 : dice.below(4_000))
  return `the primary of the store is replaced by ${by}`
}

const replaceAtRemoval: Event = (happens) => {
  const { world, dice } = happens
  const { store, time } = world
  store.replicate()
  store.onRemoval = (by) => {
    store.replacePrimary('the replica', 0)
    by.resumesAtMs = time.nowMs + dice.below(3_000)
  }
  const words = remove(happens)
  return words && `${words}; then the replica, which has it, takes over, and the process is suspended`
}

const away: Event = ({ world: { store, time }, dice }) => {
  const { primary } = store
  primary.isUp = false
  time.later(dice.below(4_000), () => (primary.isUp = primary === store.primary))
  return 'the store is away for a while'
}

const refuse: Event = ({ world: { store } }) => {
  store.refusals += 1
  return 'the store refuses the next write'
}

const EVENTS: readonly (readonly [weight: number, Event])[] = [
  [16, create],
  [16, update],
  [9, remove],
  [7, migrate],
  [5, map],
  [4, rename],
  [10, compute],
  [2, rebuild],
  [4, seal],
  [12, kill],
  [6, cut],
  [3, suspend],
  [10, replicate],
  [6, replace],
  [5, replaceAtRemoval],
  [3, away],
  [2, refuse],
]
const WEIGHTS = EVENTS.reduce((sum, [weight]) => sum + weight, 0)

/** Lets something happen, and returns its words. */
export function happen(world: PublisherWorld, dice: Dice): string {
  let at = dice.below(WEIGHTS)
  const [, event] = EVENTS.find(([weight]) => (at -= weight) < 0)!
  const alive = [...world.lives.values()].filter(({ isAlive }) => isAlive)
  if (alive.length === 0) return 'nothing: no process runs'
  const life = dice.pick(alive)
  const present = world.servers.filter(({ status }) => status !== 'deleted')
  const server = present.length > 0 && dice.chance(0.95) ? dice.pick(present) : world.servers.at(-1)
  const happens = { world, dice, life, server }
  return event(happens) ?? create(happens)!
}
