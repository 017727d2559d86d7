/** The world: three hypervisors with their daemons and guests, a store, and a control plane that changes ten instances. */
import type { Dice } from '../fuzz/dice.ts'
import { Checks, waitedFor, type Machine } from './checks.ts'
import { ControlPlane, IDS, NAMES, PLACES, type Wanted } from './control-plane.ts'
import { ask, type Answer, type Asked } from './guest.ts'
import { Hypervisor, RESYNC_MS, type Life } from './hypervisor.ts'
import { SimulatedBackend, SimulatedStore } from './store.ts'
import { Time, turn } from './time.ts'

const TOKEN_TTL = { 'x-aws-ec2-metadata-token-ttl-seconds': '21600' }
const WATCH_MS = 30_000
/** What guests read. */
const PATHS = [
  '/latest/meta-data/instance-id',
  '/latest/meta-data/local-hostname',
  '/latest/user-data',
  '/latest/dynamic/instance-identity/document',
  '/latest/dynamic/instance-identity/signature',
]

export class World {
  readonly time: Time
  readonly store: SimulatedStore
  readonly checks: Checks
  readonly control: ControlPlane
  readonly hypervisors: readonly Hypervisor[]
  readonly lines: string[] = []
  /** `HYPERVISOR ID` -> the revision from which the guest may start there. */
  readonly #launches = new Map<string, number>()

  constructor(seed: number, hypervisors: number) {
    const time = (this.time = new Time(seed))
    this.store = new SimulatedStore(time)
    this.checks = new Checks(time, this.store)
    this.hypervisors = NAMES.slice(0, hypervisors).map((name) => {
      const hypervisor: Hypervisor = new Hypervisor(name, time, this.store, {
        log: (level, message) => {
          this.note(`${name} logs: ${message}`)
          this.checks.log(hypervisor, level, message)
        },
        metric: (metric, result) => {
          this.checks.metric(hypervisor, metric, result)
        },
      })
      return hypervisor
    })
    const names = hypervisors === 1 ? [NAMES[0]!, NAMES[0]!, NAMES[1]!] : NAMES
    this.control = new ControlPlane(new SimulatedBackend(this.store, time), names, {
      stop: (id, of) => {
        this.#unlaunch(id, of)
        this.checks.stop(id, of)
      },
      launch: (id, { hypervisors: on, revision }: Wanted) => {
        this.#unlaunch(id)
        for (const name of on) this.#launches.set(`${name} ${id}`, revision)
      },
      changes: (id, isMoved) => {
        this.checks.changes(id, isMoved)
      },
      note: (text) => {
        this.note(text)
      },
      broken: (sentence) => {
        this.checks.break(sentence)
      },
    })
    for (const hypervisor of this.hypervisors) {
      hypervisor.start()
      this.#watch(hypervisor)
    }
    time.as(time.outside, () => {
      this.store.run(['init'], '')
    })
  }

  note(text: string): void {
    this.lines.push(`${(this.time.nowMs / 1_000).toFixed(4)} s  ${text}`)
  }

  /** Lets time pass, step by step. */
  async until(atMs: number): Promise<void> {
    const { time, checks } = this
    await turn()
    while (time.nextMs <= atMs && checks.broken === undefined) {
      time.step()
      const { current } = time
      await turn()
      for (const hypervisor of this.hypervisors) if (hypervisor.life === current) this.#afterStep(hypervisor)
    }
    time.nowMs = Math.max(time.nowMs, atMs)
  }

  #watch(hypervisor: Hypervisor): void {
    const look = () => {
      this.checks.checkPace(hypervisor)
      this.#watch(hypervisor)
    }
    this.time.after(WATCH_MS, look, this.time.outside)
  }

  #afterStep(hypervisor: Hypervisor): void {
    const life = hypervisor.life!
    for (const id of life.changed) this.note(`${hypervisor.name} ${describe(life, id)}`)
    this.checks.afterStep(hypervisor)
    for (const [key, revision] of this.#launches) {
      const [name, id] = key.split(' ') as [string, string]
      if (name !== hypervisor.name) continue
      const gate = life.gateOf(id)
      if (gate.kind !== 'open' || gate.revision < revision || !this.checks.isSinceLoss(hypervisor, id)) continue
      this.#launches.delete(key)
      this.note(`${name} lets the guest of ${id} start, revision ${String(gate.revision)}`)
      this.checks.launched(hypervisor, id, gate.revision)
    }
  }

  #unlaunch(id: string, of: readonly string[] = NAMES): void {
    for (const name of of) this.#launches.delete(`${name} ${id}`)
  }

  /**
   * The store has lost something: these instances are other than before. It is published again later. `guests`: whether
   * views may go back too, or serve what they have.
   */
  storeLost(ids: readonly string[], guests: 'stop' | 'serve'): void {
    const { dice } = this.time
    for (const id of ids) this.#unlaunch(id)
    this.checks.storeLost(guests === 'stop' ? ids : [])
    this.control.storeLost(ids)
    this.time.after(dice.below(60_000), () => void this.control.rebuild(), this.time.outside)
  }

  // what happens to daemons

  crash(hypervisor: Hypervisor, how: 'kill' | 'power cut'): void {
    const { dice } = this.time
    if (hypervisor.life === undefined) return
    this.checks.dies(hypervisor)
    hypervisor.kill(how)
    this.checks.died(hypervisor)
    this.note(`${hypervisor.name}: ${how === 'kill' ? 'the daemon is killed' : 'the power is cut'}`)
    this.#startAfter(hypervisor, dice.chance(0.9) ? dice.below(5_000) : dice.below(3_600_000))
  }

  stop(hypervisor: Hypervisor): void {
    hypervisor.stop(() => {
      this.checks.dies(hypervisor)
      hypervisor.kill('kill')
      this.checks.died(hypervisor)
      this.note(`${hypervisor.name}: the daemon has stopped`)
      this.#startAfter(hypervisor, 500)
    })
  }

  #startAfter(hypervisor: Hypervisor, delayMs: number): void {
    this.time.after(
      delayMs,
      () => {
        if (hypervisor.life !== undefined) return
        this.note(`${hypervisor.name}: the daemon starts`)
        hypervisor.start()
        for (const id of IDS) {
          const wanted = this.control.settled(id)
          if (wanted?.hypervisors.includes(hypervisor.name) === true)
            this.#launches.set(`${hypervisor.name} ${id}`, wanted.revision)
        }
      },
      this.time.outside,
    )
  }

  // what guests do

  /** A guest asks for something; or a peer that the daemon may not know does. */
  request(hypervisor: Hypervisor, dice: Dice): void {
    const { life } = hypervisor
    if (life?.isAnswering !== true) return
    const url = dice.pick(PATHS)
    const [network, address] = this.#peer(hypervisor, dice)
    const machine = this.checks.machines.get(`${hypervisor.name} ${network} ${address}`)
    const answers: Answer[] = []
    this.#ask(life, network, address, { method: 'GET', url, headers: {} }, (answer) => {
      answers.push(answer)
      this.#checkAnswer(life, hypervisor.name, `${network} ${address}`, machine, url, answer)
    })
    if (machine === undefined || url.endsWith('signature')) return
    if (answers.length === 0)
      this.checks.break(`a known guest never waits: that of ${machine.id} on ${hypervisor.name} does`)
  }

  /** The guest of an instance asks for its signed document, wherever it runs. */
  requestOf(id: string): void {
    for (const machine of [...this.checks.machines.values()]) {
      const life = this.hypervisors.find(({ name }) => name === machine.hypervisor)?.life
      if (machine.id !== id || life?.isAnswering !== true) continue
      const [network, address] = machine.place.split(' ') as [string, string]
      this.#ask(life, network, address, { method: 'GET', url: PATHS[4]!, headers: {} }, (answer) => {
        this.#checkAnswer(life, machine.hypervisor, machine.place, machine, PATHS[4]!, answer)
      })
    }
  }

  /** A guest waits for a change. Returns its instance; undefined: there is no guest. */
  wait(hypervisor: Hypervisor, dice: Dice): string | undefined {
    const { life } = hypervisor
    const machine = this.#machineOf(hypervisor, dice)
    if (life?.isAnswering !== true || machine === undefined) return undefined
    const path = dice.pick([PATHS[1]!, PATHS[4]!, PATHS[4]!])
    const { id } = machine
    const isSigned = path.endsWith('signature')
    const waiting = { life, id, isSigned, value: waitedFor(life, id, isSigned), isAnswered: false }
    const [network, address] = machine.place.split(' ') as [string, string]
    const url = `${path}?wait_for_change=true&timeout_sec=${String(30 + dice.below(500))}`
    this.#ask(life, network, address, { method: 'GET', url, headers: {} }, (answer) => {
      waiting.isAnswered = true
      if (answer.status === 200 || life.held.mayHold(id))
        this.#checkAnswer(life, hypervisor.name, machine.place, machine, path, answer)
    })
    this.checks.waits(waiting)
    return id
  }

  /** A guest reports something about itself. Returns its instance; undefined: there is no guest. */
  report(hypervisor: Hypervisor, dice: Dice): string | undefined {
    const { life, name } = hypervisor
    const machine = this.#machineOf(hypervisor, dice)
    if (life?.isAnswering !== true || machine === undefined) return undefined
    const { id, place } = machine
    const [network, address] = place.split(' ') as [string, string]
    const attribute = dice.pick(['a', 'b'])
    const value = `v${String(dice.below(1_000_000))}`
    this.#ask(life, network, address, { method: 'PUT', url: '/latest/api/token', headers: TOKEN_TTL }, (token) => {
      if (token.status !== 200) return
      const headers = { 'x-aws-ec2-metadata-token': token.body }
      const url = `/latest/reports/attributes/${attribute}`
      this.#ask(life, network, address, { method: 'PUT', url, headers, body: value }, ({ status }) => {
        if (status !== 200) return
        this.note(`${name} accepts a report of ${id}: ${attribute} is ${value}`)
        this.checks.accepted(name, id, attribute, value, life)
      })
    })
    return id
  }

  #peer(hypervisor: Hypervisor, dice: Dice): [string, string] {
    const machine = dice.chance(0.7) ? this.#machineOf(hypervisor, dice) : undefined
    return (machine?.place ?? dice.pick(PLACES)).split(' ') as [string, string]
  }

  #machineOf({ name }: Hypervisor, dice: Dice) {
    const all = [...this.checks.machines.values()].filter(({ hypervisor }) => hypervisor === name)
    return all.length === 0 ? undefined : dice.pick(all)
  }

  /** The answer of a daemon that has been killed reaches no guest. */
  #ask(life: Life, network: string, address: string, asked: Asked, answered: (answer: Answer) => void): void {
    ask(life, this.time, network, address, asked, (answer) => {
      if (life.isAlive) answered(answer)
    })
  }

  #checkAnswer(
    life: Life,
    name: string,
    place: string,
    asker: Machine | undefined,
    path: string,
    answer: Answer,
  ): void {
    const { status, body } = answer
    this.note(`${name} answers ${place} ${path}: ${String(status)}`)
    const [network, address] = place.split(' ') as [string, string]
    const runs = this.checks.machines.get(`${name} ${place}`)
    const machine = runs?.id === asker?.id ? runs : undefined
    const found = life.view.find(network, address)
    const id = found.kind === 'owned' ? found.owner.instance.id : undefined
    if (machine !== undefined && id !== machine.id && status === 200)
      this.checks.break(`no guest gets the value of another: ${machine.id} on ${name} gets that of ${String(id)}`)
    if (status !== 200) {
      const { instance, userData } = found.kind === 'owned' ? found.owner : {}
      const hasNone = instance?.sealedAt !== undefined || userData === undefined
      const mayBe = status === 404 && path === PATHS[2] && hasNone
      if (machine !== undefined && !mayBe)
        this.checks.break(`a known guest is answered: ${machine.id} on ${name} gets ${String(status)} for ${path}`)
      return
    }
    if (found.kind !== 'owned') {
      this.checks.break(`only known guests are answered: ${name} answers ${place}`)
      return
    }
    const { instance, userData } = found.owner
    if (!instance.hypervisors.includes(name))
      this.checks.break(`only guests of this hypervisor are answered: ${name} answers for ${instance.id}`)
    const isRight =
      path === PATHS[0]
        ? body === instance.id
        : path === PATHS[1]
          ? body === instance.fqdn
          : path === PATHS[2]
            ? instance.sealedAt === undefined && body === Buffer.from(userData ?? []).toString('latin1')
            : body.includes(`"${instance.id}"`)
    if (!isRight)
      this.checks.break(`what is served is what the view has: ${name} answers ${path} of ${instance.id} otherwise`)
  }

  /** Ends all faults, lets the control plane publish everything again, and waits for a resync or two. */
  async calm(): Promise<void> {
    const { time, store, checks } = this
    this.note('all faults end')
    time.current = time.outside
    store.setUp(true)
    store.broken.clear()
    store.armed.clear()
    for (const hypervisor of this.hypervisors) {
      hypervisor.disk.isFull = hypervisor.disk.isHanging = false
      hypervisor.disk.disarm()
      if (hypervisor.life === undefined) this.#startAfter(hypervisor, 10)
    }
    await this.until(time.nowMs + 30_000)
    void this.control.rebuild()
    await this.until(time.nowMs + 2.6 * RESYNC_MS + 60_000)
    if (checks.broken === undefined && this.control.isBusy) checks.break('a publish ends')
    if (checks.broken === undefined) for (const hypervisor of this.hypervisors) checks.checkQuiet(hypervisor)
  }
}

function describe({ view }: Life, id: string): string {
  const served = view.get(id)
  return served === undefined
    ? `no longer serves ${id}`
    : `serves ${id}, revision ${String(served.instance.revision)}${view.isUnconfirmed(id) ? ', which the store lacks' : ''}`
}
