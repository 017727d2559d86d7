/**
 * A hypervisor of the world: its disk, its clock, the rules in its kernel with their agent, and the daemon, which lives,
 * is killed, and is started again.
 *
 * The parts of the daemon are the real ones, and so are the functions that join them (buildGuestParts, restoreState,
 * buildStoreSide). What is not: sockets, the store behind the port `Source`, the disk behind the port `Disk`, and the
 * process around them.
 */
import { join } from 'node:path'
import type { Logger } from 'pino'
import type { Config } from '../../src/imdsd/config.ts'
import { RequestPipeline } from '../../src/imdsd/guest/server.ts'
import { DISK } from '../../src/imdsd/journal/disk.ts'
import { buildGuestParts, restoreState, type GuestParts, type GuestSide } from '../../src/imdsd/guest-side.ts'
import type { Metrics } from '../../src/imdsd/metrics.ts'
import { buildLaunchGate, type GateState } from '../../src/imdsd/operator/launch-gate.ts'
import { buildStoreSide, type StoreSide } from '../../src/imdsd/store-side.ts'
import type { RecordKeys } from '../../src/store/crypto/record-cipher.ts'
import type { Checks } from './checks.ts'
import { SimulatedDisk } from './disk.ts'
import { Kernel, LISTENERS, PORT } from './kernel.ts'
import { SimulatedSource, type SimulatedStore } from './store.ts'
import type { Process } from './time.ts'

const NETWORKS = Object.keys(LISTENERS)
export const RESYNC_MS = 300_000
export const MAX_AGE_MS = 3 * 24 * 3_600_000
/** Within how long a signature is made, each for half of all. A request waits for up to a second. */
const SIGN_MS = [2, 800]
/** The longest that a request is in flight. */
const DRAIN_MS = 1_100

/** A life of the daemon: from its start to its end. */
export class Life implements Process {
  isAlive = true
  /** It has started. */
  isReady = false
  /** It takes requests. */
  isAnswering = false
  readonly host: Hypervisor['host']
  readonly view: GuestParts['view']
  readonly held: GuestParts['held']
  readonly reports: GuestParts['reports']
  readonly finder: GuestParts['finder']
  /** By network. */
  readonly pipelines: ReadonlyMap<string, RequestPipeline>
  /** The instances that the view has changed since the last check. */
  readonly changed = new Set<string>()
  /** Takes real time, for the files are real. */
  restoring: Promise<unknown> | undefined
  restored: GuestSide['restored'] | undefined
  storeSide!: StoreSide
  gateOf: (id: string) => GateState | undefined = () => undefined

  constructor(host: Hypervisor['host'], parts: GuestParts) {
    this.host = host
    this.view = parts.view
    this.held = parts.held
    this.reports = parts.reports
    this.finder = parts.finder
    const pipelineOf = (network: string) => {
      const rules = { ...parts.rules, limitHops: () => true } // of a socket
      const pipeline = new RequestPipeline({ ...parts, rules, network, maxConnections: Infinity })
      pipeline.setAddress(LISTENERS[network]![0])
      return pipeline
    }
    this.pipelines = new Map(NETWORKS.map((name) => [name, pipelineOf(name)]))
    this.view.onChange((id) => this.changed.add(id))
  }

  /** The files are of a version with another schema: their digests say nothing. */
  dropDigests(): void {
    for (const { record } of [...this.view.instances()]) {
      const { instance, order, digest = '' } = record
      if (digest !== '') this.host.dropped.set(`${instance.id} ${order}`, digest)
      this.view.replace({ ...record, digest: undefined })
    }
  }

  /** The digest of the record that the view has. */
  digestOf(id: string): string | undefined {
    const served = this.view.get(id)
    if (served === undefined) return undefined
    const { digest = '', order } = served // files have an empty one
    return digest === '' ? this.host.dropped.get(`${id} ${order}`) : digest
  }
}

export class Hypervisor {
  readonly name: string
  readonly disk: SimulatedDisk
  /** `dropped`: `ID ORDER` -> the digest of the record, which upgrades of the daemon have dropped. */
  readonly host = { wallOffsetMs: 0, wasSet: false, dropped: new Map<string, string>() }
  /** The next life is of another version. */
  isUpgraded = false
  life: Life | undefined
  readonly kernel: Kernel
  readonly #store: SimulatedStore
  readonly #checks: Checks
  readonly #config: Config
  readonly #secrets: readonly Uint8Array[]

  /** `needsFirewall`: only the firewall separates the networks. */
  constructor(
    name: string,
    store: SimulatedStore,
    checks: Checks,
    recordKeys: RecordKeys | undefined,
    needsFirewall: boolean,
  ) {
    this.name = name
    this.#store = store
    this.#checks = checks
    this.#secrets = [Buffer.alloc(32, name)]
    this.disk = new SimulatedDisk(store.time, `${name}-memory`)
    this.kernel = new Kernel(name, store.time)
    this.#config = {
      store: { kind: 'redis', url: '', region: 'gb1', hypervisor: name, recordKeys },
      stateDirectory: name,
      operatorSocket: join(this.disk.memory, name),
      journalMaxAgeMs: MAX_AGE_MS,
      userDataMaxBytes: 16_384,
      resyncMs: RESYNC_MS,
      listen: NETWORKS.map((network) => ({ network, host: LISTENERS[network]![0], port: PORT })),
      needsFirewall,
      firewall: { required: true, link: '{interfaceId}' },
      share: { burst: 1_000, perSecond: 1_000, connections: 100 },
      forwarded: 'count',
    } as unknown as Config
  }

  start(): void {
    const { time } = this.#store
    const sign = async (document: string) => {
      const { promise, resolve } = Promise.withResolvers<undefined>()
      time.after(time.dice.below(time.dice.pick(SIGN_MS)), () => resolve(undefined))
      await promise
      return { signature: `signed ${document}`, pkcs7: `pkcs7 ${document}` }
    }
    const identity = { signer: { sign }, mintToken: undefined }
    const parts = buildGuestParts(this.#config, this.#secrets, identity, this.#log(), () => time.nowMs)
    const life = (this.life = new Life(this.host, parts))
    time.after(0, () => void this.#live(life, parts), life)
    this.kernel.serve(life)
  }

  /** Ends the daemon at once. With a power cut, what was not flushed is lost. */
  kill(how: 'kill' | 'power cut'): void {
    const { life } = this
    if (life !== undefined) {
      life.isAlive = false
      this.#store.forget(life)
      this.disk.kill(life)
    }
    this.life = undefined
    if (how === 'kill') return
    this.disk.cutPower()
    this.kernel.reboot()
  }

  /** Stops the daemon in order, as for an upgrade: after the requests in flight. Then `stopped` is called. */
  stop(stopped: () => void): void {
    const { life } = this
    if (life?.isAnswering !== true) return
    life.isAnswering = false
    life.held.stop()
    const stop = () => {
      life.storeSide.firewall.stop()
      void life.storeSide.stop().then(stopped)
    }
    this.#store.time.after(DRAIN_MS, stop, life)
  }

  async #live(life: Life, guests: GuestParts): Promise<void> {
    const { view, reports } = guests
    const config = this.#config
    const log = this.#log()
    const restoring = this.disk.lend(this.name, () => restoreState(config, this.#secrets, view, reports, DISK, log))
    life.restoring = restoring
    const state = await restoring
    if (this.isUpgraded) life.dropDigests()
    this.isUpgraded = false
    life.changed.clear()
    life.restored = state.restored
    const storeSide = await buildStoreSide({
      config,
      log,
      now: () => this.#store.time.nowMs,
      guestSide: { ...state, ...guests, endFirewallWait: () => undefined } as unknown as GuestSide,
      disk: this.disk,
      openSource: async () => Promise.resolve(new SimulatedSource(this.#store, this.name)),
      metrics: this.#metrics(),
      onChange: () => undefined,
    })
    const { firewall, sync } = storeSide
    const listeners = NETWORKS.flatMap((network) =>
      LISTENERS[network]!.map((address) => ({ network, address, port: PORT })),
    )
    firewall.documents.setListeners({ listeners, operator: { address: '127.0.0.1', port: 9169 }, limitedDscp: 1 })
    if (state.restored.isComplete) firewall.documents.noteComplete()
    life.storeSide = storeSide
    life.gateOf = buildLaunchGate({ view, firewall, networks: NETWORKS, unreachable: () => undefined })
    life.isReady = life.isAnswering = true
    sync.start()
  }

  #log(): Logger {
    const at = (level: string | symbol) =>
      level !== 'warn' && level !== 'error'
        ? () => undefined
        : (...args: unknown[]) => {
            const facts = JSON.stringify(args.length > 1 ? args[0] : {}, errorText)
            this.#checks.log(this, level, `${String(args.at(-1))} ${facts}`)
          }
    return new Proxy({} as Logger, { get: (_log, level) => at(level) })
  }

  /** Counters of any name. */
  #metrics(): Metrics {
    const inc = (name: string | symbol) => ({
      inc: ({ result = '' } = {}) => this.#checks.metric(this, name, result),
    })
    return new Proxy({} as Metrics, { get: (_metrics, name) => (name === 'sync' ? this.#metrics() : inc(name)) })
  }
}

function errorText(_key: string, value: unknown): unknown {
  return value instanceof Error ? value.message : value
}
