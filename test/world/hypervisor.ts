/**
 * A hypervisor of the world: its disk, its clock, the rules in its kernel with their agent, and the daemon, which lives,
 * is killed, and is started again.
 *
 * The parts of the daemon are the real ones, and so are the functions that join them (restoreState, buildStoreSide). What
 * is not: sockets, the store behind the port `Source`, the disk behind the port `Disk`, and the process around them.
 */
import type { Logger } from 'pino'
import type { Config } from '../../src/imdsd/config.ts'
import type { FirewallDocument } from '../../src/imdsd/firewall/document.ts'
import { BootTraces } from '../../src/imdsd/guest/boot-traces.ts'
import { HeldRequests } from '../../src/imdsd/guest/held-requests.ts'
import type { GuestFinder } from '../../src/imdsd/guest/identify.ts'
import { RequestMeter } from '../../src/imdsd/guest/meter.ts'
import { RefusalLog } from '../../src/imdsd/guest/refusal-log.ts'
import { GuestReports } from '../../src/imdsd/guest/reports.ts'
import { RequestPipeline } from '../../src/imdsd/guest/server.ts'
import { Shares, UNKNOWN_PEERS } from '../../src/imdsd/guest/share.ts'
import { Tokens, tokenTime } from '../../src/imdsd/guest/token.ts'
import { ViewGuestFinder } from '../../src/imdsd/guest-finder.ts'
import { restoreState, type GuestSide } from '../../src/imdsd/guest-side.ts'
import type { Metrics } from '../../src/imdsd/metrics.ts'
import { buildLaunchGate, type GateState } from '../../src/imdsd/operator/launch-gate.ts'
import { buildStoreSide, type StoreSide } from '../../src/imdsd/store-side.ts'
import type { RecordKeys } from '../../src/store/crypto/record-cipher.ts'
import { View } from '../../src/imdsd/view/view.ts'
import type { Checks } from './checks.ts'
import { SimulatedDisk } from './disk.ts'
import { SimulatedSource, type SimulatedStore } from './store.ts'
import type { Process, Time } from './time.ts'

export const NETWORKS = ['default', 'blue'] as const
export const RESYNC_MS = 300_000
export const MAX_AGE_MS = 3 * 24 * 3_600_000
const USER_DATA_MAX_BYTES = 16_384
/** A signature that takes longer than a second is not awaited. */
const MAX_SIGN_MS = 800
/** The longest that a request is in flight. */
const DRAIN_MS = 1_100

/** A life of the daemon: from its start to its end. */
export class Life implements Process {
  isAlive = true
  /** It has started. */
  isReady = false
  /** It takes requests. */
  isAnswering = false
  readonly host: { wallOffsetMs: number }
  readonly view: View
  readonly held = new HeldRequests()
  readonly reports: GuestReports
  readonly pipelines = new Map<string, RequestPipeline>()
  /** The instances that the view has changed since the last check. */
  readonly changed = new Set<string>()
  /** Takes real time, for the files are real. */
  restoring: Promise<unknown> | undefined
  restored: GuestSide['restored'] | undefined
  storeSide!: StoreSide
  gateOf: (id: string) => GateState = () => ({ kind: 'not-served' })

  constructor(host: { wallOffsetMs: number }, time: Time) {
    this.host = host
    const now = () => time.nowMs
    const sign = (document: string) =>
      new Promise<{ signature: string; pkcs7: string }>((resolve) => {
        time.after(Math.min(time.latencyMs(), MAX_SIGN_MS), () => {
          resolve({ signature: `signed ${document}`, pkcs7: `pkcs7 ${document}` })
        })
      })
    this.view = new View({ signer: { sign } }, now)
    this.reports = new GuestReports(now, () => Date.now())
    this.view.onChange((id) => {
      this.held.check(id)
      this.changed.add(id)
    })
  }
}

export class Hypervisor {
  readonly name: string
  readonly disk: SimulatedDisk
  readonly host = { wallOffsetMs: 0, wasSet: false }
  life: Life | undefined
  /** The document that the rules in the kernel are made from. */
  rules: FirewallDocument | undefined
  readonly #time: Time
  readonly #store: SimulatedStore
  readonly #checks: Checks
  readonly #recordKeys: RecordKeys | undefined

  constructor(name: string, store: SimulatedStore, checks: Checks, recordKeys: RecordKeys | undefined) {
    this.name = name
    this.#time = store.time
    this.#store = store
    this.#checks = checks
    this.#recordKeys = recordKeys
    this.disk = new SimulatedDisk(store.time)
  }

  start(): void {
    const life = new Life(this.host, this.#time)
    this.life = life
    this.#time.after(0, () => void this.#live(life), life)
    this.#askForDocument(life)
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
    this.rules = undefined
  }

  /** Stops the daemon in order, as for an upgrade: after the requests in flight. Then `stopped` is called. */
  stop(stopped: () => void): void {
    const { life } = this
    if (life?.isAnswering !== true) return
    life.isAnswering = false
    life.held.stop()
    const stop = () => {
      life.storeSide.firewall.stop()
      void life.storeSide.stop().then(() => {
        stopped()
      })
    }
    this.#time.after(DRAIN_MS, stop, life)
  }

  async #live(life: Life): Promise<void> {
    const { view, reports, held } = life
    const now = () => this.#time.nowMs
    const secret = Buffer.alloc(32, this.name)
    const config = {
      store: { kind: 'redis', url: '', region: 'gb1', hypervisor: this.name, recordKeys: this.#recordKeys },
      stateDirectory: this.name,
      snapshotMaxAgeMs: MAX_AGE_MS,
      userDataMaxBytes: USER_DATA_MAX_BYTES,
      resyncMs: RESYNC_MS,
      linkLocal: [],
      needsFirewall: false,
      firewall: { required: true, link: 'tap-{interfaceId}' },
    } as unknown as Config
    const log = this.#log()
    const restoring = this.disk.lend(this.name, () => restoreState(config, [secret], view, reports, log))
    life.restoring = restoring
    const state = await restoring
    life.changed.clear()
    life.restored = state.restored
    const traces = new BootTraces()
    const finder = new ViewGuestFinder(config, view)
    const guestSide = {
      ...state,
      view,
      reports,
      traces,
      setLookUp: (lookUp: GuestFinder['lookUp']) => {
        finder.setLookUp(lookUp)
      },
      endFirewallWait: () => undefined,
    } as unknown as GuestSide
    const tokens = new Tokens(
      [secret],
      tokenTime(() => Date.now(), now),
    )
    const meter = new RequestMeter()
    for (const network of NETWORKS) {
      const pipeline = new RequestPipeline({
        network,
        maxConnections: Infinity,
        finder,
        isLinkLocal: () => false,
        shares: new Shares({ burst: 1_000, perSecond: 1_000, connections: 100 }, UNKNOWN_PEERS),
        rules: { tokens, forwarded: 'count', limitHops: () => true, issuerOf: () => undefined },
        meter,
        traces,
        held,
        reports,
        refusalLog: new RefusalLog(log, now),
        log,
      })
      pipeline.setAddress('169.254.169.254')
      life.pipelines.set(network, pipeline)
    }
    const source = async () => Promise.resolve(new SimulatedSource(this.#store, this.name))
    const { disk } = this
    const metrics = this.#metrics()
    const parts = { config, log, now, guestSide, disk, openSource: source, metrics, operatorAddress: () => undefined }
    const storeSide = await buildStoreSide(parts)
    const { firewall, sync } = storeSide
    const listeners = NETWORKS.map((network) => ({ network, address: '169.254.169.254', port: 80 }))
    firewall.setListeners({ listeners, operator: { address: '127.0.0.1', port: 9169 }, limitedDscp: 1 })
    if (view.size > 0 && state.restored.isComplete) firewall.noteComplete()
    life.storeSide = storeSide
    life.gateOf = buildLaunchGate({ view, firewall, networks: NETWORKS, unreachable: () => undefined })
    life.isReady = life.isAnswering = true
    sync.start()
  }

  /** The firewall's agent: it makes the rules from the newest document, and reports which it has applied. */
  #askForDocument(life: Life): void {
    const time = this.#time
    const later = (delayMs: number, run: () => void) => {
      time.later(delayMs, () => {
        if (this.life === life) run()
      })
    }
    let idle = 0
    const ask = () => {
      if (!life.isReady) {
        later(100, ask)
        return
      }
      const report = { applied: this.rules?.version, refused: [], packets: undefined }
      const answered = time.as(life, () => life.storeSide.firewall.next(report))
      void answered.then((document) => {
        idle = document?.version === report.applied ? idle + 1 : 0
        later(time.latencyMs(), () => {
          this.rules = document ?? this.rules
          later(idle < 40 ? 1 : 60_000, ask) // so that quiet days cost the simulation little
        })
      })
    }
    ask()
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
      inc: ({ result = '' } = {}) => {
        this.#checks.metric(this, name, result)
      },
    })
    return new Proxy({} as Metrics, { get: (_metrics, name) => (name === 'sync' ? this.#metrics() : inc(name)) })
  }
}

function errorText(_key: string, value: unknown): unknown {
  return value instanceof Error ? value.message : value
}
