/** What happens in the publishers' world: each event with how often it does. All choices come from its own dice. */
import { sql } from 'kysely'
import { giveOutActions, reportOutcome } from '../../src/imds-api/changes/action-queue.ts'
import { createCloudIp, mapCloudIp, unmapCloudIp } from '../../src/imds-api/changes/cloud-ips.ts'
import { createServer } from '../../src/imds-api/changes/create-server.ts'
import { updateGroup } from '../../src/imds-api/changes/server-groups.ts'
import { beginLiveMigration, endLiveMigration } from '../../src/imds-api/changes/server-placement.ts'
import { deleteServer, lockServer, updateServer } from '../../src/imds-api/changes/server-requests.ts'
import { enqueueAllServers } from '../../src/imds-api/changes/rebuild.ts'
import type { Tx } from '../../src/imds-api/database/transaction.ts'
import { StoreBehind } from '../../src/store/publisher.ts'
import type { Dice } from '../fuzz/dice.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import type { Life } from './publisher-process.ts'
import type { PublisherWorld, ServerRow } from './publisher.ts'
import { pickKind, type Chosen, type Kind } from './run.ts'

/** Makes something happen in a process, perhaps to a server, which may be deleted. `words`: of the event. */
type Run = (world: PublisherWorld, dice: Dice, life: Life, server: ServerRow, words: string) => void
const KINDS: Kind<Run>[] = []

/** While the store is behind, an operator's seal is refused. */
function unlessBehind(error: unknown): void {
  if (!(error instanceof StoreBehind)) throw error
}

/** Adds an event: how often it happens, and its words, with the process (API) and the server (ID) that it concerns. */
function on(weight: number, words: string, run: Run): void {
  KINDS.push({ weight, words, run })
}

/** Adds a change of a server, which is a transaction. */
function onChange(
  weight: number,
  words: string,
  change: (tx: Tx, server: ServerRow, dice: Dice, world: PublisherWorld) => Promise<unknown>,
): void {
  on(weight, words, (world, dice, life, server, text) => {
    world.run(life, text, () =>
      life.accounts.commitInAnyState(server.account_id, (tx) => change(tx, server, dice, world)),
    )
  })
}

export const NEW_SERVER = {
  ...{ image: 'img-deb12', serverType: undefined, zone: undefined },
  ...{ cloudIp: false, diskEncrypted: false, waitFor: undefined },
}

on(16, 'API creates a server', (world, dice, life, _server, words) => {
  const account = dice.pick([ONE, TWO])
  const asked = { ...NEW_SERVER, cloudIp: dice.chance(0.3) }
  world.run(life, words, () =>
    life.accounts.commitInAnyState(account, (tx) => createServer(tx, world.compute, account, asked)),
  )
})
onChange(16, 'API updates ID', async (tx, { account_id: account, id }, dice) => {
  const text = String(dice.below(1_000_000))
  const values = dice.chance(0.5) ? { tags: { Name: text } } : { user_data: Buffer.from(text).toString('base64') }
  await updateServer(tx, await lockServer(tx, account, id), values)
})
onChange(9, 'API deletes ID', (tx, { account_id: account, id }, _dice, { compute }) =>
  deleteServer(tx, compute, account, id),
)
on(7, 'API begins or ends a migration of ID', (world, _dice, life, { id, hypervisor, migrating_to: to }, words) => {
  const parts = { db: life.db, accounts: life.accounts, retrySeconds: 30 }
  const other = hypervisor === 'hv-1' ? 'hv-2' : 'hv-1'
  world.run(life, words, () =>
    to === null ? beginLiveMigration(parts, id, other, () => true) : endLiveMigration(parts, id, () => true),
  )
})
onChange(5, 'API maps or unmaps a cloud IP of ID', async (tx, { account_id: account, id }) => {
  const ips = await tx.selectFrom('cloud_ips').select(['id', 'status']).where('account_id', '=', account).execute()
  const free = ips.find(({ status }) => status === 'unmapped')
  const mapped = ips.find(({ status }) => status === 'mapped')
  if (free !== undefined || mapped === undefined)
    await mapCloudIp(tx, account, free?.id ?? (await createCloudIp(tx, account)), id)
  else await unmapCloudIp(tx, account, mapped.id)
})
onChange(4, 'API renames the group of ID', async (tx, { account_id: account }, dice) => {
  const groups = tx.selectFrom('server_groups').select('id').where('account_id', '=', account)
  const { id } = await groups.executeTakeFirstOrThrow()
  await updateGroup(tx, account, id, { name: String(dice.below(1_000_000)) })
})
on(10, 'API serves the agents of all hypervisors', (world, dice, life, _server, words) => {
  if (world.compute === 'none') return
  for (const hypervisor of ['hv-1', 'hv-2', 'hv-3'])
    world.run(life, words, async () => {
      for (const { id } of await giveOutActions(life.db, hypervisor, 30, sql<{ id: number }>`to_json(action)`)) {
        const outcome = dice.chance(0.9) ? 'succeeded' : 'failed'
        await reportOutcome(life.db, life.accounts, hypervisor, id, { outcome, fault: null })
      }
    })
})
on(2, 'API begins a rebuild', (world, _dice, life, _server, words) => {
  world.run(life, words, () => life.db.transaction().execute((tx) => enqueueAllServers(tx, [])))
})
on(4, 'an operator seals ID by API', (world, _dice, life, { id }, words) => {
  world.sealed.add(id)
  world.run(life, words, () => life.store.seal(id).catch(unlessBehind))
})
on(12, 'API is killed', (world, _dice, life) => world.kill(life))
on(6, 'PostgreSQL ends connections of API', (world, _dice, life) => world.cut(life))
on(3, 'API is suspended for a while', ({ time }, dice, life) => {
  life.resumesAtMs = time.nowMs + dice.below(5_000)
})
on(10, 'the replica has everything', ({ store }) => store.replicate())
on(5, 'the replica becomes the primary of the store', ({ store }, dice) => {
  store.replacePrimary('the replica', dice.chance(0.5) ? 0 : dice.below(4_000))
})
on(1, 'the primary of the store is replaced by an empty server', ({ store }, dice) => {
  store.replacePrimary('an empty server', dice.chance(0.5) ? 0 : dice.below(4_000))
})
onChange(
  5,
  'API deletes ID, and is suspended when the store has removed it; then the replica, which has it, takes over',
  (tx, { account_id: account, id }, dice, { store, compute, time }) => {
    store.replicate()
    store.onRemoval = (by) => {
      store.replacePrimary('the replica', 0)
      by.resumesAtMs = time.nowMs + dice.below(3_000)
    }
    return deleteServer(tx, compute, account, id)
  },
)
on(3, 'the store is away for a while', ({ store, time }, dice) => {
  const { primary } = store
  primary.isUp = false
  time.later(dice.below(4_000), () => (primary.isUp = primary === store.primary))
})
on(2, 'the store refuses the next write', ({ store }) => {
  store.refusals += 1
})

/** Chooses an event. */
export function choose(world: PublisherWorld, dice: Dice): Chosen {
  const { words, run } = pickKind(KINDS, dice)
  const alive = [...world.lives.values()].filter(({ isAlive }) => isAlive)
  if (alive.length === 0) return { words: 'nothing: no process runs', run: () => undefined }
  const life = dice.pick(alive)
  const present = world.servers.filter(({ status }) => status !== 'deleted')
  const server = present.length > 0 && dice.chance(0.95) ? dice.pick(present) : world.servers.at(-1)!
  const text = words.replace('API', life.name).replace('ID', server.id)
  return {
    words: text,
    run: () => run(world, dice, life, server, text),
  }
}
