/** Builds the status page: joins it with the checks, what guests asked for and the history. */
import type { Registry } from 'prom-client'
import { runChecks } from '../runtime/check.ts'
import { NOT_OF_DAEMON, OF_DAEMON } from './checks/checks.ts'
import type { Readiness } from './operator/documents.ts'
import { buildHistory, INTERVAL_MS } from './operator/page/history.ts'
import { formatPage } from './operator/page/page.ts'
import type { RequestsParts } from './operator/requests.ts'
import type { OperatorParts } from './operator/server.ts'
import { buildPageTurns } from '../pages/page-turns.ts'
import type { HostPort } from '../runtime/host-port.ts'
import { VERSION } from '../runtime/installation.ts'
import type { Config } from './config.ts'
import type { GuestSide } from './guest-side.ts'
import { buildDaemonState } from './daemon-state.ts'
import { StateWatch } from './state-watch.ts'

/** What the page needs. `operator`: the operators' listener on TCP. */
export interface StatusPageParts {
  readonly config: Config
  readonly guestSide: GuestSide
  readonly registry: Registry
  readonly readiness: () => Readiness
  readonly requestsParts: RequestsParts
  readonly networks: readonly string[]
  readonly operator: () => HostPort
}

/** The page, and what runs for it meanwhile. */
interface StatusPage {
  readonly page: OperatorParts['page']
  /** Begins to record what the page shows. */
  readonly start: () => void
  readonly stop: () => void
}

export function buildStatusPage(parts: StatusPageParts): StatusPage {
  const { config, guestSide, registry, readiness, requestsParts, networks, operator } = parts
  const { now } = requestsParts
  const history = buildHistory(guestSide.meter, now)
  const state = new StateWatch(config.stateDirectory, now)
  const turns = buildPageTurns()
  let timer: NodeJS.Timeout | undefined
  const daemonState = buildDaemonState({ config, guests: guestSide.guests, operator, readiness, registry, state })
  const pageParts = {
    ...requestsParts,
    view: guestSide.view,
    hypervisor: config.store.hypervisor,
    version: VERSION,
    startedMs: now(),
    networks,
    readiness,
    health: async () => ({ results: await runChecks(OF_DAEMON, daemonState), unchecked: NOT_OF_DAEMON }),
    history,
  }
  return {
    page: (question) => turns.take(() => formatPage(pageParts, question)),
    start: () => {
      void state.check()
      timer = setInterval(() => {
        history.sample()
        void state.check()
      }, INTERVAL_MS)
    },
    stop: () => clearInterval(timer),
  }
}
