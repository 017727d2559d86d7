/** The listeners of imds-api: for clients, operators and hypervisors. */
import type { FastifyInstance } from 'fastify'
import { readFileSync } from 'node:fs'
import { buildPageTurns } from '../../pages/page-turns.ts'
import { inTime } from '../../limits/in-time.ts'
import { formatListenAddress, type HostPort, type ListenAddress } from '../../runtime/host-port.ts'
import { listen, listenAt, StartFailure } from '../../runtime/listen.ts'
import { readSecretFile } from '../../runtime/setting-files.ts'
import { VERSION } from '../../runtime/installation.ts'
import { COMPUTE_CHANNEL } from '../changes/handshake.ts'
import { buildComputeServer } from '../compute/server.ts'
import { Waiters } from '../../limits/waiters.ts'
import type { ComputeListener } from '../compute/settings.ts'
import { buildListener } from '../database/notifications.ts'
import { keyedResultOf } from '../http/idempotency.ts'
import type { ApiServerSettings } from '../http/server.ts'
import { addResponseCount } from '../http/steps.ts'
import { buildOperatorServer } from './operator.ts'
import { formatRegionPage } from '../page/page.ts'
import { API_CONDITIONS, readConditions, type ServiceStateParts } from '../conditions/table.ts'
import { declareConditions } from '../../conditions/metric.ts'
import { buildApiServer, type Auth } from './rest.ts'
import type { ApiService, ServiceParts } from './service-parts.ts'

/** A listener. `start` resolves with its address, or its addresses. */
export interface ListeningService<Address> extends ApiService {
  start(): Promise<Address>
}

const COMPUTE_POLL_MS = 2_000
/** The longest that a stop waits for requests on which imds-api works, such as a change that waits for its turn. */
const CLOSE_TIMEOUT_MS = 10_000
/** How long a request waits for the reports of a guest. */
const REPORTS_TIMEOUT_MS = 500

export async function buildClientListener(
  parts: ServiceParts,
  auth: Auth,
): Promise<ListeningService<readonly ListenAddress[]>> {
  const { config, storeOpener, metrics, delay, connections } = parts
  const readReports = async (id: string) => (await storeOpener.open()).reports(id)
  const server = await buildApiServer({
    ...parts,
    auth,
    reports: (id) => inTime(readReports(id), REPORTS_TIMEOUT_MS),
  })
  if (config.tls !== undefined) metrics.setCertificate('clients', readFileSync(config.tls.certificate, 'utf8'))
  addResponseCount(server, (request, reply, done) => {
    metrics.countResponse(request.routeOptions.url ?? 'unknown', request.method, reply.statusCode)
    const keyed = keyedResultOf(request, reply)
    if (keyed !== undefined) metrics.countKeyed(keyed)
    done()
  })
  delay.watch(server)
  connections.clients.start(server)
  return {
    start: () => listenAt(server, config.listen, 'IMDS_API_LISTEN', () => connections.clients.endWaiting()),
    stop: () => closeServer(server),
  }
}

export function buildOperatorListener(
  { config, database, metrics, delay, connections }: ServiceParts,
  state: ServiceStateParts,
): ListeningService<HostPort> {
  const turns = buildPageTurns()
  const conditions = async () => (await readConditions(state)).found
  declareConditions(metrics.registry, API_CONDITIONS, conditions)
  const server = buildOperatorServer({
    database: database.background,
    publisher: state.publishing,
    isStopping: () => delay.hasBegun,
    page: (question) => turns.take(() => formatRegionPage({ ...state, version: VERSION }, question)),
    conditions,
    registry: metrics.registry,
    password: readPassword(config.operator.passwordFile),
    now: () => performance.now(),
  })
  connections.operators.start(server)
  return {
    start: () => listen(server, config.operator, 'IMDS_API_OPERATOR_LISTEN'),
    stop: () => closeServer(server),
  }
}

/** Builds the listener for hypervisors. With IMDS_API_COMPUTE=none there is none. */
export function buildComputeListener(parts: ServiceParts): ApiService {
  const { config, database, metrics, connections, delay, log } = parts
  if (config.compute === 'none') return { start: () => undefined, stop: () => Promise.resolve() }
  const { listen: address, tls, retrySeconds } = config.computeListener
  const waiters = new Waiters()
  const notifications = buildListener(
    () => database.connect(),
    COMPUTE_CHANNEL,
    (hypervisor) => waiters.wake(hypervisor),
  )
  const pems = readComputeTls(tls)
  const settings = { waiters, retrySeconds, pollMs: COMPUTE_POLL_MS, count: metrics.countOutcome }
  const server = buildComputeServer({ ...parts, ...settings, db: database.db }, pems)
  if (pems !== undefined) metrics.setCertificate('hypervisors', pems.cert)
  connections.hypervisors.start(server)
  delay.watch(server)
  return {
    start: async () => {
      const [listening] = await listenAt(server, [address], 'IMDS_API_COMPUTE_LISTEN', () => {
        connections.hypervisors.endWaiting()
      })
      notifications.start()
      log.info({ compute: formatListenAddress(listening!) }, 'hypervisors can fetch actions')
    },
    stop: () => Promise.all([closeServer(server), notifications.stop()]),
  }
}

function readPassword(path: string | undefined): string | undefined {
  if (path === undefined) return undefined
  try {
    return readSecretFile(path)
  } catch (error) {
    throw new StartFailure(`IMDS_API_OPERATOR_PASSWORD_FILE ${(error as Error).message}`, { cause: error })
  }
}

/** Reads the files. Throws an error that names a file that cannot be read. */
function readComputeTls(files: ComputeListener['tls']): ApiServerSettings['tls'] {
  return files === undefined
    ? undefined
    : {
        cert: readFileSync(files.certificate, 'utf8'),
        key: readFileSync(files.key, 'utf8'),
        ca: readFileSync(files.clientCa, 'utf8'),
      }
}

/**
 * Waits for the in-flight requests, and closes all connections. After CLOSE_TIMEOUT_MS it also closes those whose
 * requests have not ended.
 */
async function closeServer(server: Pick<FastifyInstance, 'close' | 'server'>): Promise<void> {
  const timer = setTimeout(() => server.server.closeAllConnections(), CLOSE_TIMEOUT_MS)
  await server.close()
  clearTimeout(timer)
}
