/** Builds the status page: joins it with the checks, what guests asked for and the history. */
import type { Readiness } from './operator/documents.ts'
import { buildHistory, INTERVAL_MS } from './operator/page/history.ts'
import { formatPage } from './operator/page/page.ts'
import type { RequestsParts } from './operator/requests.ts'
import type { OperatorParts } from './operator/server.ts'
import { buildPageTurns } from '../pages/page-turns.ts'
import { VERSION } from '../runtime/installation.ts'
import type { Config } from './config.ts'
import type { GuestSide } from './guest-side.ts'

/** What the page needs. */
export interface StatusPageParts {
  readonly config: Config
  readonly guestSide: GuestSide
  readonly readiness: () => Readiness
  readonly requestsParts: RequestsParts
  readonly networks: readonly string[]
}

/** The page, and what runs for it meanwhile. */
interface StatusPage {
  readonly page: OperatorParts['page']
  /** Begins to record what the page shows. */
  readonly start: () => void
  readonly stop: () => void
}

export function buildStatusPage(parts: StatusPageParts): StatusPage {
  const { config, guestSide, readiness, requestsParts, networks } = parts
  const { now } = requestsParts
  const history = buildHistory(guestSide.meter, now)
  const turns = buildPageTurns()
  let timer: NodeJS.Timeout | undefined
  const pageParts = {
    ...requestsParts,
    view: guestSide.view,
    hypervisor: config.store.hypervisor,
    version: VERSION,
    startedMs: now(),
    networks,
    readiness,
    history,
  }
  return {
    page: (question) => turns.take(() => formatPage(pageParts, question)),
    start: () => {
      timer = setInterval(() => history.sample(), INTERVAL_MS)
    },
    stop: () => clearInterval(timer),
  }
}
