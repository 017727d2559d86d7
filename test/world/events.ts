/**
 * What happens in the world: each event with how often it does. All choices of an event come from its own dice.
 *
 * Swarm testing: each seed has only some kinds of events. What one kind always interrupts or repairs is then tried
 * without it.
 */
import { diceOf, type Dice } from '../fuzz/dice.ts'
import { REPORT_MS } from './report-checks.ts'
import { IDS } from './control-plane.ts'
import type { Hypervisor } from './hypervisor.ts'
import { pickKind, type Chosen, type Kind } from './run.ts'
import type { World } from './world.ts'

const HOUR_MS = 3_600_000

/** What an event does. */
export type Run = (world: World, dice: Dice, hypervisor: Hypervisor, id: string) => unknown
const KINDS: Kind<Run>[] = []

/** Adds an event: how often it happens, and its words, with the hypervisor (HV) and the instance (ID) that it concerns. */
function on(weight: number, words: string, run: Run): void {
  KINDS.push({ weight, words, run })
}

on(30, 'ID is changed', ({ control }, dice, _hypervisor, id) => control.put(id, dice))
on(10, 'ID is moved', ({ control }, dice, _hypervisor, id) => control.move(id, dice))
on(8, 'ID is removed', ({ control }, _dice, _hypervisor, id) => control.remove(id))
on(
  6,
  'ID, whose guest asks for its signed document, is removed, and another one gets its address',
  (world, dice, _hypervisor, id) => {
    world.requestOf(id)
    return world.control.handOver(id, dice.pick(IDS), dice)
  },
)
on(6, 'ID is sealed or unsealed', ({ control }, dice, _hypervisor, id) => control.seal(id, dice.chance(0.6)))
on(
  6,
  'while HV has no store, ID is removed, its tombstone expires, and its address is given away',
  ({ store, control, time }, dice, { name }, id) => {
    store.breakLink(name, 'loud')
    void control.handOver(id, dice.pick(IDS), dice)
    time.later(5_000 + dice.below(15_000), () => {
      store.forgetTombstone(id)
      store.broken.delete(name)
    })
  },
)
on(4, 'another program writes something in place of the record of ID', ({ store }, dice, _hv, id) =>
  store.spoil(id, dice),
)
on(
  3,
  'ID is made anew while HV has no store; another program writes something in place of its record, and puts it back',
  async (world, dice, hypervisor, id) => {
    const { store, control, time, checks } = world
    const { name } = hypervisor
    const { losses } = store
    await control.remove(id)
    store.breakLink(name, 'loud')
    time.later(5_000, () => store.broken.delete(name))
    await control.put(id, dice)
    // a publish that was refused leaves the record of before its removal
    if (!control.settled(id)?.places.length) return
    store.spoilFor(10_000 + dice.below(20_000), id, dice, (entry) => {
      if (losses === store.losses) checks.willServe(hypervisor, id, entry)
    })
  },
)
on(2, 'the control plane publishes everything again', ({ control }) => control.rebuild())
on(12, 'the replica is up to date', ({ store }) => store.replicate())
on(3, 'the replica takes over; what it lacks is lost, and is published again later', (world) => {
  world.storeLost(world.store.failOver())
})
on(4, 'a dump of the store is made', ({ store }) => {
  store.dump()
})
on(3, 'an old dump of the store is loaded; what it lacks is lost, and is published again later', (world, dice) => {
  world.storeLost(world.store.restore(dice.chance(0.5)))
})
on(
  2,
  'the store is emptied; ID is changed, HV compares its view, and everything is published again later',
  (world, dice, hypervisor, id) => {
    world.storeLost(world.store.empty())
    world.time.later(dice.below(20_000), () => void world.control.put(id, dice))
    world.time.later(dice.below(60_000), () => world.resync(hypervisor))
  },
)
on(4, 'the store goes down or comes back', ({ store, time }, dice) => {
  if (!store.setUp(!store.primary.isUp)) time.later(dice.below(120_000), () => store.setUp(true))
})
on(10, 'the link of HV to the store breaks or is repaired', ({ store, time }, dice, { name }) => {
  if (store.broken.delete(name)) return
  store.breakLink(name, dice.pick(['loud', 'silent']))
  const longMs = dice.chance(0.05) ? 80 * HOUR_MS : dice.chance(0.7) ? 3_000 : 900_000
  time.later(dice.below(longMs), () => store.broken.delete(name))
})
on(5, 'the daemon of HV is killed', (world, _dice, hypervisor) => world.crash(hypervisor, 'kill'))
on(4, 'the power of HV is cut', (world, _dice, hypervisor) => world.crash(hypervisor, 'power cut'))
on(16, 'HV will crash in one of its next operations of the disk', (world, dice, hypervisor) => {
  const how = dice.pick(['kill', 'power cut', 'power cut'] as const)
  hypervisor.disk.arm(1 + dice.below(dice.chance(0.5) ? 6 : 30), () => world.crash(hypervisor, how))
})
on(3, 'the daemon of HV stops in order, and starts again', (world, _dice, hypervisor) => world.stop(hypervisor))
on(8, 'HV compares its view with the store, and its link may break meanwhile', (world, dice, hypervisor) => {
  const { store, time } = world
  const { name } = hypervisor
  if (dice.chance(0.7)) {
    time.later(dice.below(dice.pick([5, 50, 500])), () => store.breakLink(name, 'loud'))
    time.later(dice.below(120_000), () => store.broken.delete(name))
  }
  world.resync(hypervisor)
})
on(9, 'the disk of HV is full, hangs or deletes nothing, or no longer', ({ checks, time }, dice, hypervisor) => {
  const { disk } = hypervisor
  const how = dice.pick(['isFull', 'isFull', 'isHanging', 'isProtected'] as const)
  const hows = how === 'isProtected' ? ([how, 'isFull'] as const) : [how]
  for (const one of hows) disk[one] = !disk[one]
  disk.troubledAtMs = Math.max(disk.troubledAtMs, time.nowMs)
  checks.trouble(hypervisor)
  time.later(dice.below(HOUR_MS), () => hows.map((one) => (disk[one] = false))) // days of retries cost much
})
on(3, 'a bit of a file of HV is flipped, and its daemon is killed', (world, _dice, hypervisor) => {
  if (!hypervisor.disk.flipBit()) return
  world.checks.trouble(hypervisor)
  world.crash(hypervisor, 'kill')
})
on(2, 'the clock of HV is set', (_world, dice, { host }) => {
  host.wasSet = true
  host.wallOffsetMs += (dice.below(2_001) - 1_000) * dice.pick([10, 1_000, 3_600])
})
on(
  3,
  'a guest of HV reports something, and is removed, but the store refuses to delete the report; another one reports',
  (world, dice, hypervisor) => {
    const id = world.report(hypervisor, dice)
    if (id === undefined) return
    world.store.refused.remove.add(id)
    world.time.later(HOUR_MS, () => world.store.refused.remove.delete(id)) // days of retries cost much
    world.time.later(3_000 + dice.below(3_000), () => void world.control.remove(id))
    world.time.later(20_000 + dice.below(20_000), () => void world.report(hypervisor, dice))
  },
)
on(
  3,
  'a guest of HV reports something, but the store refuses the report for a while; it is changed, and the daemon is killed',
  (world, dice, hypervisor) => {
    const id = world.report(hypervisor, dice)
    if (id === undefined) return
    world.store.refused.save.add(id)
    world.time.later(120_000, () => world.store.refused.save.delete(id))
    world.time.later(REPORT_MS + dice.below(20_000), () => {
      void world.control.put(id, dice)
      // when the change is in the journal, and before the journal is rewritten
      hypervisor.disk.arm(4 + dice.below(10), () => world.crash(hypervisor, 'kill'))
    })
  },
)
on(40, 'a guest of HV asks for something', (world, dice, hypervisor) => world.request(hypervisor, dice))
on(12, 'a guest of HV waits for a change, which may come soon', (world, dice, hypervisor) => {
  const id = world.wait(hypervisor, dice)
  if (id !== undefined && !dice.chance(0.5)) world.time.later(dice.below(400), () => void world.control.put(id, dice))
})
on(12, 'a guest of HV reports something', (world, dice, hypervisor) => world.report(hypervisor, dice))

on(60, 'links of HV send', (world, dice, hypervisor) => {
  for (let n = 0; n < 4; n++) world.time.later(dice.below(50) * n, () => world.send(hypervisor, dice))
})
on(20, 'ID is removed, and its address is given away', ({ control }, dice, _hypervisor, id) => {
  void control.handOver(id, dice.pick(IDS), dice)
})
on(10, 'ID is removed, and a new one gets its address and its link', ({ control }, dice, _hypervisor, id) => {
  void control.handOver(id, dice.pick(IDS), dice, true)
})
on(10, 'ID and another one exchange their addresses', ({ control }, dice, _hypervisor, id) => {
  void control.exchange(id, dice.pick(IDS), dice)
})
on(8, 'ID gets another address, and then its former one again', ({ control }, dice, _hypervisor, id) => {
  void control.thereAndBack(id, dice)
})
on(6, 'the agent of HV is slow, or no longer', ({ time }, dice, { kernel }) => {
  kernel.slowMs = kernel.slowMs > 0 ? 0 : dice.pick([200, 5_000, 60_000])
  time.later(dice.below(300_000), () => (kernel.slowMs = 0))
})
on(6, 'the agent of HV ends, and starts again', (_world, dice, { kernel }) => {
  kernel.restartAgent(dice.below(dice.pick([1, 2_000, 60_000, 600_000])))
})
on(4, 'another program removes the rules of HV', (_world, _dice, { kernel }) => {
  kernel.flush()
})

on(
  5,
  'a dump of the store is made, ID is removed, its daemon may be killed, and the dump is loaded soon',
  async (world, dice, hypervisor, id) => {
    const { store, control } = world
    const home = world.hypervisors.find(({ name }) => control.wantedOf(id).hypervisors.includes(name))
    store.dump()
    await control.remove(id)
    world.later(dice.below(dice.pick([100, 1_000, 20_000])), () => {
      if (home !== undefined && dice.chance(0.4)) world.crash(home, 'kill')
      world.storeLost(store.restore(dice.chance(0.7)))
      world.later(dice.below(5_000), () => world.resync(hypervisor))
    })
  },
)
on(
  8,
  'while the agent of HV is slow, and perhaps its disk, one is changed, the address of another is given away, and the daemon may be killed',
  (world, dice, hypervisor) => {
    const { control, checks } = world
    const { kernel, name } = hypervisor
    const ids = checks.idsOn(name)
    if (ids.length === 0) return
    kernel.slowMs = dice.pick([200, 5_000, 20_000])
    hypervisor.disk.slowMs = dice.pick([0, 200, 400])
    world.time.later(dice.below(60_000), () => (kernel.slowMs = hypervisor.disk.slowMs = 0))
    void control.thereAndBack(dice.pick(ids), dice)
    world.later(dice.below(1_000), () => control.handOver(dice.pick(ids), dice.pick(IDS), dice))
    if (dice.chance(0.5)) world.later(dice.below(5_000), () => world.crash(hypervisor, 'kill'))
  },
)
on(
  4,
  'the agent of HV ends, another program removes its rules, and one is changed',
  (world, dice, { name, kernel }) => {
    const ids = world.checks.idsOn(name)
    kernel.restartAgent(60_000)
    kernel.flush()
    if (ids.length > 0) world.later(10_000 + dice.below(40_000), () => world.control.put(dice.pick(ids), dice))
  },
)
on(6, 'the disk of HV is slow', ({ time }, dice, { disk }) => {
  disk.slowMs = dice.pick([20, 200, 400])
  time.later(dice.below(60_000), () => (disk.slowMs = 0))
})
on(
  6,
  'the disk of HV is slow, one changes its address, another leaves; its agent gets slow, and its daemon is killed',
  (world, dice, hypervisor) => {
    const { control, checks } = world
    const { kernel, disk, name } = hypervisor
    const ids = checks.idsOn(name)
    if (ids.length === 0) return
    disk.slowMs = dice.pick([200, 400])
    void control.thereAndBack(dice.pick(ids), dice)
    world.later(dice.below(1_500), () => control.handOver(dice.pick(ids), dice.pick(IDS), dice))
    world.later(1_000 + dice.below(1_500), () => (kernel.slowMs = 60_000))
    world.later(1_500 + dice.below(2_000), () => world.crash(hypervisor, 'kill'))
    world.time.later(30_000, () => (kernel.slowMs = disk.slowMs = 0))
  },
)
on(2, 'the daemon of HV is upgraded', (world, _dice, hypervisor) => world.upgrade(hypervisor))
on(
  4,
  'while HV has no store one loses its address to another, which leaves; an old dump is loaded, and the daemon is upgraded',
  (world, dice, hypervisor, to) => {
    const { store, control, checks } = world
    const [id] = checks.idsOn(hypervisor.name)
    if (id === undefined) return
    store.dump()
    store.breakLink(hypervisor.name, 'loud')
    void control.handOver(id, to, dice)
    world.time.later(8_000, () => {
      store.forgetTombstone(id)
      store.broken.delete(hypervisor.name)
    })
    world.later(25_000, () => control.remove(to))
    world.later(30_000, () => world.storeLost(store.restore(dice.chance(0.5))))
    world.later(30_000 + dice.below(10_000), () => world.upgrade(hypervisor))
  },
)

/** The events of a seed. Changes of instances (the first) are always among them. */
export function kindsOf(seed: number): readonly Kind<Run>[] {
  const dice = diceOf(seed, -3)
  const share = dice.pick([0.25, 0.5, 0.75, 1])
  return KINDS.filter((_kind, index) => dice.chance(share) || index === 0)
}

/** Chooses one of some events. */
export function choose(world: World, dice: Dice, kinds: readonly Kind<Run>[]): Chosen {
  const { words, run } = pickKind(kinds, dice)
  const hypervisor = dice.pick(world.hypervisors)
  const id = dice.pick(IDS)
  return {
    words: words.replaceAll('HV', hypervisor.name).replaceAll('ID', id),
    run: () => run(world, dice, hypervisor, id),
  }
}

/** How long it takes until the next event: mostly so short that events meet. */
export function pauseMs(dice: Dice): number {
  const kind = dice.below(10_000)
  if (kind < 5_500) return dice.below(60) / 10
  if (kind < 8_000) return dice.below(500)
  if (kind < 9_500) return dice.below(10_000)
  return kind < 9_999 ? dice.below(120_000) : dice.below(80 * HOUR_MS)
}
