/** The world: hypervisors with their daemons and guests, a store, and a control plane that changes ten instances. */
import { createSecretKey } from 'node:crypto'
import { formatIdentityDocument } from '../../src/metadata/identity-document.ts'
import type { Dice } from '../fuzz/dice.ts'
import { RecordCipher, type RecordKeys } from '../../src/store/crypto/record-cipher.ts'
import { Checks, ownerOf, type Machine } from './checks.ts'
import { ControlPlane, IDS, NAMES, PLACES } from './control-plane.ts'
import { choose, kindsOf, pauseMs, type Run } from './events.ts'
import { ask, type Answer } from './guest.ts'
import { Hypervisor, RESYNC_MS, type Life } from './hypervisor.ts'
import { play, type Chosen, type Eventful, type Kind, type RunSeed } from './run.ts'
import { buildPublisher } from './real-publisher.ts'
import { SimulatedStore } from './store.ts'
import { Time, turn } from './time.ts'

/** Events of a seed, before everything becomes quiet. */
const EVENTS = 250
const TOKEN_TTL = { 'x-aws-ec2-metadata-token-ttl-seconds': '21600' }
const WATCH_MS = 30_000
/** How soon a request that waits is answered after a change, with all signatures that it needs. */
const WAIT_MS = 7_000
/** When the kernel sends a response again that is not acknowledged. */
const AGAIN_MS = [0, 1_000, 10_000, 100_000]
/** For how long several networks may be answered without rules: how long a confirmation counts. */
const NO_RULES_MS = 8_000
/** What guests read. */
const HOSTNAME = '/latest/meta-data/local-hostname'
const USER_DATA = '/latest/user-data'
const SIGNATURE = '/latest/dynamic/instance-identity/signature'
const ID = '/latest/meta-data/instance-id'
const PATHS = [ID, HOSTNAME, USER_DATA, '/latest/dynamic/instance-identity/document', SIGNATURE]
const KEYS: RecordKeys = [{ name: 'k1', key: createSecretKey(Buffer.alloc(32, 1)) }]

/** Runs a seed. */
export const run: RunSeed = (seed, only) => play(new World(seed), seed, EVENTS, only)

export class World implements Eventful {
  readonly time: Time
  readonly store: SimulatedStore
  readonly checks: Checks
  readonly control: ControlPlane
  readonly hypervisors: readonly Hypervisor[]
  readonly #kinds: readonly Kind<Run>[]
  #isCalm = false

  /** Odd seeds have one hypervisor, so that what one disk does is tried more often; half of all have record keys. */
  constructor(seed: number) {
    const time = (this.time = new Time(seed))
    this.#kinds = kindsOf(seed)
    const isSingle = seed % 2 === 1
    const keys = seed % 4 < 2 ? undefined : KEYS
    const store = (this.store = new SimulatedStore(time, keys && new RecordCipher(keys, 'gb1')))
    const checks = (this.checks = new Checks(time, store))
    const needsFirewall = seed % 3 === 0
    this.hypervisors = NAMES.slice(0, isSingle ? 1 : 3).map(
      (name) => new Hypervisor(name, store, checks, keys, needsFirewall),
    )
    const client = { ...time.outside, resumesAtMs: 0 }
    const publisher = buildPublisher(store, client, { note: () => undefined, puts: () => () => undefined })
    const names = isSingle ? [NAMES[0]!, NAMES[0]!, NAMES[1]!] : NAMES
    this.control = new ControlPlane(publisher, () => store.primary, names, checks, time)
    for (const hypervisor of this.hypervisors) {
      hypervisor.start()
      this.#watch(hypervisor)
    }
    time.as(time.outside, () => store.run(['init'], ''))
  }

  /** Lets time pass, step by step. */
  async until(atMs: number): Promise<void> {
    await this.time.until(atMs, async () => {
      const hypervisor = this.hypervisors.find(({ life }) => life === this.time.current)
      if (hypervisor?.life?.isReady === false) await hypervisor.life.restoring
      await turn()
      if (hypervisor !== undefined) this.checks.afterStep(hypervisor)
    })
  }

  readonly pauseMs = pauseMs

  choose(dice: Dice): Chosen {
    return choose(this, dice, this.#kinds)
  }

  #watch(hypervisor: Hypervisor): void {
    this.time.later(WATCH_MS, () => {
      this.checks.checkPace(hypervisor)
      this.#watch(hypervisor)
    })
  }

  /**
   * The store has lost something: these instances are other than before. It is published again later.
   */
  storeLost(ids: readonly string[]): void {
    for (const id of ids) for (const name of NAMES) this.checks.launches.delete(`${name} ${id}`)
    this.checks.storeLost()
    this.control.storeLost(ids)
    const { dice } = this.time
    this.later(dice.below(dice.pick([60_000, 900_000])), () => this.control.rebuild())
  }

  /** Does something later, unless the world is calm then. */
  later(delayMs: number, act: () => unknown): void {
    this.time.later(delayMs, () => {
      if (!this.#isCalm) void act()
    })
  }

  // what happens to daemons

  /** A daemon compares its view with the store. */
  resync({ life }: Hypervisor): void {
    if (life?.isReady !== true) return
    this.time.as(life, () => life.storeSide.sync.resync())
  }

  crash(hypervisor: Hypervisor, how: 'kill' | 'power cut'): void {
    const { dice } = this.time
    if (hypervisor.life === undefined) return
    this.#end(hypervisor, how)
    this.#startAfter(hypervisor, dice.chance(0.9) ? dice.below(5_000) : dice.below(3_600_000))
  }

  stop(hypervisor: Hypervisor): void {
    hypervisor.stop(() => {
      this.#end(hypervisor, 'kill')
      this.#startAfter(hypervisor, 500)
    })
  }

  /** Another version of the daemon is installed. */
  upgrade(hypervisor: Hypervisor): void {
    hypervisor.isUpgraded = true
    this.stop(hypervisor)
  }

  #end(hypervisor: Hypervisor, how: 'kill' | 'power cut'): void {
    hypervisor.kill(how)
    this.checks.ended(hypervisor)
    if (how === 'power cut') this.checks.rebooted(hypervisor.name)
    this.time.note(`${hypervisor.name}: the daemon has ended: ${how}`)
  }

  #startAfter(hypervisor: Hypervisor, delayMs: number): void {
    this.time.later(delayMs, () => {
      if (hypervisor.life !== undefined) return
      this.time.note(`${hypervisor.name}: the daemon starts`)
      hypervisor.start()
      for (const id of IDS) {
        const wanted = this.control.settled(id)
        if (wanted !== undefined) this.checks.launch(id, wanted, [hypervisor.name])
      }
    })
  }

  // what guests do

  /** A guest asks for something; or a peer that the daemon may not know does. */
  request(hypervisor: Hypervisor, dice: Dice): void {
    const url = dice.pick(PATHS)
    const machine = dice.chance(0.7) ? this.#machineOf(hypervisor, dice) : undefined
    this.#get(hypervisor, machine, machine?.place ?? dice.pick(PLACES), url)
  }

  /**
   * A link sends a request from an address that its guest has or had, also after it was stopped; or from that of another
   * guest, or to the listener of another network. The kernel decides whether it reaches the daemon.
   */
  send(hypervisor: Hypervisor, dice: Dice): void {
    const { life, name, kernel } = hypervisor
    const { checks, time, control } = this
    const all = [...checks.senders.values()].filter(
      ({ hypervisor, id, link }) => hypervisor === name && control.hasLink(id, link),
    )
    if (life?.isAnswering !== true || all.length === 0) return
    kernel.touch()
    const sender = dice.pick(all)
    const place = dice.chance(0.4) ? dice.pick(all).place : sender.place
    const [network, address] = place.split(' ') as [string, string]
    const at = dice.chance(0.1) ? `${network === 'blue' ? 'default' : 'blue'} ${address}` : place
    const isOpen = kernel.rules === undefined
    const url = dice.pick(PATHS)
    const connection = kernel.accept({ ...sender, place: at })
    if (connection === undefined) return
    ask(life, time, at, { url }, ({ status, body }) => {
      time.note(`${name} answers the link of ${sender.id} from ${at} ${url}: ${status}`)
      if (status !== 200) return
      const atMs = time.nowMs
      for (const delayMs of dice.chance(0.3) ? AGAIN_MS : [0])
        time.later(delayMs, () => {
          for (const link of kernel.linksOf(connection)) {
            const to = checks.behind.get(`${name} ${link}`) ?? 'nobody'
            const isOff = to !== 'nobody' && !control.hasLink(to, link) // with its link
            if (to !== sender.id && !isOff && checks.remembers(name, atMs))
              time.break(`a response goes to the guest of its request: ${name} sends that of ${sender.id} to ${to}`)
          }
        })
      if (life.finder.isSeparatedByRules && kernel.isOpenFor(NO_RULES_MS))
        time.break(`several networks are served only with their rules: ${name} has none, and answers ${at}`)
      const whose = /srv-\d/.exec(body)?.[0]
      if (!isOpen && whose !== undefined && whose !== sender.id)
        time.break(
          `a packet that the kernel accepts gets no data of another: ${name} gives the link of ${sender.id} ` +
            `at ${at} that of ${whose}`,
        )
    })
  }

  /** The guest of an instance asks for its signed document, wherever it runs. */
  requestOf(id: string): void {
    for (const machine of this.checks.machines.values()) {
      const hypervisor = this.hypervisors.find(({ name }) => name === machine.hypervisor)!
      if (machine.id === id) this.#get(hypervisor, machine, machine.place, SIGNATURE)
    }
  }

  #get({ life, name, kernel }: Hypervisor, asker: Machine | undefined, place: string, url: string): void {
    if (life?.isAnswering !== true) return
    kernel.touch()
    const machine = asker ?? this.checks.machines.get(`${name} ${place}`)
    const answers: Answer[] = []
    ask(life, this.time, place, { url }, (answer) => {
      answers.push(answer)
      this.#checkAnswer(life, name, place, machine, url, answer)
    })
    if (machine !== undefined && url !== SIGNATURE && answers.length === 0)
      this.time.break(`a known guest never waits: that of ${machine.id} on ${name} does`)
  }

  /** A guest waits for a change. Returns its instance; undefined: there is no guest. */
  wait(hypervisor: Hypervisor, dice: Dice): string | undefined {
    const { life, name } = hypervisor
    const machine = this.#machineOf(hypervisor, dice)
    if (life?.isAnswering !== true || machine === undefined) return undefined
    const path = dice.pick([HOSTNAME, SIGNATURE, SIGNATURE])
    const { id, place } = machine
    const now = () => {
      const instance = life.view.get(id)?.instance
      return instance && (path === SIGNATURE ? formatIdentityDocument(instance) : instance.fqdn)
    }
    const first = now()
    let isAnswered = false
    life.view.onChange((changed) => {
      const value = now()
      if (isAnswered || changed !== id || value === first) return
      const check = () => {
        if (!isAnswered && now() === value)
          this.time.break(`a request that waits is answered after a change: one of ${id} still waits`)
      }
      this.time.after(WAIT_MS, check, life)
    })
    const url = `${path}?wait_for_change=true&timeout_sec=${30 + dice.below(500)}`
    ask(life, this.time, place, { url }, (answer) => {
      isAnswered = true
      if (answer.status === 200 || life.held.mayHold(id)) this.#checkAnswer(life, name, place, machine, path, answer)
    })
    return id
  }

  /** A guest reports something about itself. Returns its instance; undefined: there is no guest. */
  report(hypervisor: Hypervisor, dice: Dice): string | undefined {
    const { checks, time } = this
    const { life, name } = hypervisor
    const machine = this.#machineOf(hypervisor, dice)
    if (life?.isAnswering !== true || machine === undefined) return undefined
    const { id, place } = machine
    const attribute = dice.pick(['a', 'b'])
    const body = `v${dice.below(1_000_000)}`
    ask(life, this.time, place, { url: '/latest/api/token', method: 'PUT', headers: TOKEN_TTL }, (token) => {
      const headers = { 'x-aws-ec2-metadata-token': token.body }
      const url = `/latest/reports/${attribute}`
      if (token.status !== 200 && ownerOf(life, place) === id && life.finder.firewallWait === undefined)
        time.break(`a known guest is answered: that of ${id} on ${name} gets ${token.status} for a token`)
      else if (token.status === 200)
        ask(life, this.time, place, { url, method: 'PUT', headers, body }, ({ status }) => {
          if (status !== 200) return
          if (checks.machines.get(`${name} ${place}`) === machine)
            checks.reports.accepted(name, id, attribute, body, life)
          else checks.reports.forget((one) => one.id === id && one.name === attribute) // its removal may have begun
        })
    })
    return id
  }

  #machineOf({ name }: Hypervisor, dice: Dice): Machine | undefined {
    const all = [...this.checks.machines.values()].filter(({ hypervisor }) => hypervisor === name)
    return all.length === 0 ? undefined : dice.pick(all)
  }

  #checkAnswer(
    life: Life,
    name: string,
    place: string,
    asker: Machine | undefined,
    path: string,
    { status, body }: Answer,
  ): void {
    const { checks, time } = this
    time.note(`${name} answers ${place} ${path}: ${status}`)
    const runs = asker && checks.machines.get(`${name} ${asker.place}`)
    const machine = runs?.id === asker?.id ? runs : undefined
    const owner = ownerOf(life, place)
    const { instance, userData } = life.view.get(owner) ?? {}
    const bytes = instance?.sealedAt === undefined ? userData : undefined
    if (status !== 200) {
      const hasNone = status === 404 && path === USER_DATA && bytes === undefined
      if (owner === machine?.id && !hasNone && life.finder.firewallWait === undefined)
        time.break(`a known guest is answered: ${owner} on ${name} gets ${status} for ${path}`)
      return
    }
    if (machine !== undefined && owner !== machine.id)
      time.break(`no guest gets the value of another: ${machine.id} on ${name} gets that of ${owner}`)
    if (instance?.hypervisors.includes(name) !== true) {
      time.break(`only known guests of this hypervisor are answered: ${name} answers ${place}, which is ${owner}`)
      return
    }
    const values = new Map([
      [ID, instance.id],
      [HOSTNAME, instance.fqdn],
      [USER_DATA, bytes && Buffer.from(bytes).toString('latin1')],
    ])
    if (values.has(path) ? body !== values.get(path) : !body.includes(`"${instance.id}"`))
      time.break(`what is served is what the view has: ${name} answers ${path} of ${instance.id} otherwise`)
  }

  /**
   * Ends all faults but refused removals of reports, lets the control plane publish everything again and guests report,
   * and waits for a resync or two.
   */
  async calm(): Promise<void> {
    const { time, store, checks } = this
    time.note('all faults end')
    this.#isCalm = true
    time.current = time.outside
    store.setUp(true)
    store.broken.clear()
    store.refused.save.clear()
    store.run(['init'], '') // as an operator does whose store has nothing
    for (const hypervisor of this.hypervisors) {
      hypervisor.disk.calm()
      hypervisor.kernel.calm()
      if (hypervisor.life === undefined) this.#startAfter(hypervisor, 10)
    }
    await this.until(time.nowMs + 30_000)
    for (const [id, { isFaulty }] of store.primary.entries) {
      if (!isFaulty) continue
      checks.stop(id)
      store.run(['remove', id], id)
    }
    void this.control.rebuild()
    await this.until(time.nowMs + RESYNC_MS)
    for (const hypervisor of this.hypervisors) this.report(hypervisor, time.dice)
    await this.until(time.nowMs + 1.6 * RESYNC_MS + 60_000)
    if (time.broken !== undefined) return
    if (this.control.isBusy) time.break('a publish ends')
    for (const hypervisor of this.hypervisors) checks.checkQuiet(hypervisor)
  }
}
