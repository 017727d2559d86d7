/** What happens in the world: each event with how often it does. All choices of an event come from its own dice. */
import type { Dice } from '../fuzz/dice.ts'
import { IDS } from './control-plane.ts'
import type { Hypervisor } from './hypervisor.ts'
import type { World } from './world.ts'

const HOUR_MS = 3_600_000

interface Event {
  readonly weight: number
  /** Its words, with the name of the hypervisor and the id of the instance that it concerns. */
  readonly words: (name: string, id: string) => string
  readonly run: (world: World, dice: Dice, hypervisor: Hypervisor, id: string) => void
}

const EVENTS: readonly Event[] = [
  {
    weight: 30,
    words: (_name, id) => `${id} is changed`,
    run: ({ control }, dice, _hypervisor, id) => {
      control.put(id, dice)
    },
  },
  {
    weight: 10,
    words: (_name, id) => `${id} is moved`,
    run: ({ control }, dice, _hypervisor, id) => {
      control.move(id, dice)
    },
  },
  {
    weight: 8,
    words: (_name, id) => `${id} is removed`,
    run: ({ control }, _dice, _hypervisor, id) => void control.remove(id),
  },
  {
    weight: 6,
    words: (_name, id) =>
      `${id}, whose guest asks for its signed document, is removed, and another one gets its address`,
    run: (world, dice, _hypervisor, id) => {
      world.requestOf(id)
      void world.control.handOver(id, dice.pick(IDS), dice)
    },
  },
  {
    weight: 6,
    words: (_name, id) => `${id} is sealed or unsealed`,
    run: ({ control }, dice, _hypervisor, id) => {
      control.seal(id, dice.chance(0.6))
    },
  },
  {
    weight: 6,
    words: (name, id) =>
      `while ${name} has no store, ${id} is removed, its tombstone expires, and its address is given away`,
    run: ({ store, control, time }, dice, { name }, id) => {
      store.breakLink(name, 'loud')
      void control.handOver(id, dice.pick(IDS), dice)
      time.after(
        5_000 + dice.below(15_000),
        () => {
          store.forgetTombstone(id)
          store.broken.delete(name)
        },
        time.outside,
      )
    },
  },
  {
    weight: 2,
    words: () => 'the control plane publishes everything again',
    run: ({ control }) => void control.rebuild(),
  },
  {
    weight: 12,
    words: () => 'the replica is up to date',
    run: ({ store }) => {
      store.replicate()
    },
  },
  {
    weight: 3,
    words: () => 'the replica takes over; what it lacks is lost, and is published again later',
    run: (world) => {
      world.storeLost(world.store.failOver(), 'stop')
    },
  },
  {
    weight: 1,
    words: () => 'the store is emptied, and everything is published again later',
    run: (world) => {
      world.storeLost(world.store.empty(), 'serve')
    },
  },
  {
    weight: 4,
    words: () => 'the store goes down or comes back',
    run: ({ store, time }, dice) => {
      store.setUp(!store.isUp)
      if (!store.isUp)
        time.after(
          dice.below(120_000),
          () => {
            store.setUp(true)
          },
          time.outside,
        )
    },
  },
  {
    weight: 10,
    words: (name) => `the link of ${name} to the store breaks or is repaired`,
    run: ({ store, time }, dice, { name }) => {
      if (store.broken.delete(name)) return
      store.breakLink(name, dice.pick(['loud', 'silent']))
      const longMs = dice.chance(0.05) ? 200 * HOUR_MS : dice.chance(0.7) ? 3_000 : 900_000
      time.after(
        dice.below(longMs),
        () => {
          store.broken.delete(name)
        },
        time.outside,
      )
    },
  },
  {
    weight: 5,
    words: (name) => `the daemon of ${name} is killed`,
    run: (world, _dice, hypervisor) => {
      world.crash(hypervisor, 'kill')
    },
  },
  {
    weight: 4,
    words: (name) => `the power of ${name} is cut`,
    run: (world, _dice, hypervisor) => {
      world.crash(hypervisor, 'power cut')
    },
  },
  {
    weight: 16,
    words: (name) => `${name} will crash in one of its next operations of the disk`,
    run: (world, dice, hypervisor) => {
      const how = dice.pick(['kill', 'power cut', 'power cut'] as const)
      hypervisor.disk.arm(1 + dice.below(dice.chance(0.5) ? 6 : 30), () => {
        world.crash(hypervisor, how)
      })
    },
  },
  {
    weight: 3,
    words: (name) => `the daemon of ${name} stops in order, and starts again`,
    run: (world, _dice, hypervisor) => {
      world.stop(hypervisor)
    },
  },
  {
    weight: 8,
    words: (name) => `${name} compares its view with the store, and its link may break meanwhile`,
    run: ({ store, time }, dice, { name, life }) => {
      if (dice.chance(0.7)) {
        store.armed.set(name, 1 + dice.below(4))
        time.after(dice.below(120_000), () => void store.broken.delete(name), time.outside)
      }
      if (life?.isReady === true)
        time.as(life, () => {
          life.storeSide.sync.resync()
        })
    },
  },
  {
    weight: 4,
    words: (name) => `the disk of ${name} is full, or no longer`,
    run: ({ checks }, _dice, hypervisor) => {
      hypervisor.disk.isFull = !hypervisor.disk.isFull
      if (hypervisor.disk.isFull) checks.trouble(hypervisor)
    },
  },
  {
    weight: 3,
    words: (name) => `the disk of ${name} hangs, or no longer`,
    run: ({ checks }, _dice, hypervisor) => {
      const { disk } = hypervisor
      disk.isHanging = !disk.isHanging
      disk.troubledAtMs = Math.max(disk.troubledAtMs, hypervisor.nowMs)
      checks.trouble(hypervisor)
    },
  },
  {
    weight: 3,
    words: (name) => `a bit of a file of ${name} is flipped, and its daemon is killed`,
    run: (world, _dice, hypervisor) => {
      if (!hypervisor.disk.flipBit()) return
      world.checks.damaged(hypervisor)
      world.crash(hypervisor, 'kill')
    },
  },
  {
    weight: 2,
    words: (name) => `the clock of ${name} is set`,
    run: (_world, dice, { host }) => {
      host.wasSet = true
      host.wallOffsetMs += (dice.below(2_001) - 1_000) * dice.pick([10, 1_000, 3_600])
    },
  },
  {
    weight: 3,
    words: (name) => `a guest of ${name} reports something, and is removed, but the store refuses to delete the report`,
    run: (world, dice, hypervisor) => {
      const id = world.report(hypervisor, dice)
      if (id === undefined) return
      world.store.refusesReportsOf = id
      world.time.after(3_000 + dice.below(3_000), () => void world.control.remove(id), world.time.outside)
    },
  },
  {
    weight: 40,
    words: (name) => `a guest of ${name} asks for something`,
    run: (world, dice, hypervisor) => {
      world.request(hypervisor, dice)
    },
  },
  {
    weight: 12,
    words: (name) => `a guest of ${name} waits for a change, which may come soon`,
    run: (world, dice, hypervisor) => {
      const id = world.wait(hypervisor, dice)
      if (id === undefined || dice.chance(0.5)) return
      const change = () => {
        world.control.put(id, dice)
      }
      world.time.after(dice.below(400), change, world.time.outside)
    },
  },
  {
    weight: 12,
    words: (name) => `a guest of ${name} reports something`,
    run: (world, dice, hypervisor) => {
      world.report(hypervisor, dice)
    },
  },
]
const ALL = EVENTS.flatMap((event) => Array.from({ length: event.weight }, () => event))

/** Makes an event happen. Returns its words. */
export function happen(world: World, dice: Dice): string {
  const event = dice.pick(ALL)
  const hypervisor = dice.pick(world.hypervisors)
  const id = dice.pick(IDS)
  const words = event.words(hypervisor.name, id)
  world.note(words)
  event.run(world, dice, hypervisor, id)
  return words
}

/** How long it takes until the next event: mostly so short that events meet. */
export function pauseMs(dice: Dice): number {
  const kind = dice.below(10_000)
  if (kind < 5_500) return dice.below(60) / 10
  if (kind < 8_000) return dice.below(500)
  if (kind < 9_500) return dice.below(10_000)
  return kind < 9_999 ? dice.below(120_000) : dice.below(200 * HOUR_MS)
}
