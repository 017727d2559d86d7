/** `imds-api doctor` and `imds-api status`: whether the control plane of this host is well. Each returns its exit status. */
import { setTimeout as sleep } from 'node:timers/promises'
import { formatDuration } from '../../runtime/ago.ts'
import { failure, ok, printChecks, runChecks, warning, type Check, type CheckResult } from '../../runtime/check.ts'
import { formatHostPort } from '../../runtime/host-port.ts'
import { parseMetrics, ratesBetween, runningVersion, type Sample } from '../../runtime/metric-values.ts'
import type { Output } from '../../runtime/output.ts'
import { readSecretFile } from '../../runtime/setting-files.ts'
import type { ParsedVariables, VariableFault } from '../../runtime/variables.ts'
import { VERSION } from '../../runtime/installation.ts'
import { probeStore, storeOfPublisher } from '../../store/probe.ts'
import type { ApiConfig } from '../service/config.ts'
import type { ServiceConditions } from '../service/operator.ts'

/** The configuration of the service, and what is wrong with the files that it names. */
export interface ServiceConfiguration {
  readonly parsed: ParsedVariables<ApiConfig>
  readonly fileFaults: readonly VariableFault[]
}

const TIMEOUT_MS = 7_000
const INTERVAL_MS = 1_000
const READABLE =
  'correct the file; a key that only root may read needs a drop-in, such as api-tls.conf (docs/install.md#secrets)'
const CORRECT = 'correct it in /etc/imds/imds-api.env, then systemctl restart imds-api'

const CHECKS: readonly Check<ServiceConfiguration>[] = [
  {
    code: 'configuration',
    what: 'the variables of imds-api.service are valid',
    run: ({ parsed }) => {
      if (!parsed.ok) return parsed.faults.map(({ variable, message }) => failure(`${variable} ${message}`, CORRECT))
      const { unknown } = parsed
      return unknown.length === 0
        ? [ok('it is valid')]
        : unknown.map((name) => warning(`${name} is no variable of imds-api, and is ignored`, CORRECT))
    },
  },
  {
    code: 'files',
    what: 'the user of imds-api.service can read the files of the variables, and they are valid',
    run: ({ fileFaults }) =>
      fileFaults.length === 0
        ? [ok('the service can read each file of its variables')]
        : fileFaults.map(({ variable, message }) => failure(`${variable} ${message}`, READABLE)),
  },
  {
    code: 'store',
    what: 'the store can be reached, has the region, and allows what imds-api does',
    run: ({ parsed }) => (parsed.ok ? probeStore(storeOfPublisher(parsed.value.store)) : []),
  },
]

/** Prints the result of each check, those of the service itself included. */
export async function doctor(configuration: ServiceConfiguration, output: Output): Promise<number> {
  return printChecks(output, await findAll(configuration))
}

/** Prints the state of the service, its rates during a second, and the results of doctor that are not ok. */
export async function status(configuration: ServiceConfiguration, output: Output): Promise<number> {
  const { parsed } = configuration
  const [results, rows] = await Promise.all([
    findAll(configuration),
    parsed.ok ? stateRows(parsed.value).catch(() => []) : [], // the service does not answer: a result says so
  ])
  const found = results.filter(({ severity }) => severity !== 'ok')
  return printChecks(output, results, found, rows, { service: Object.fromEntries(rows) })
}

/** What is found in the configuration and the store, and what the service itself has found. */
async function findAll(configuration: ServiceConfiguration): Promise<readonly CheckResult[]> {
  const { parsed } = configuration
  const results = runChecks(CHECKS, configuration)
  return parsed.ok ? [...(await findInService(parsed.value)), ...(await results)] : results
}

async function findInService(config: ApiConfig): Promise<readonly CheckResult[]> {
  try {
    const { version, conditions } = (await (await ask(config, '/conditions')).json()) as ServiceConditions
    const finding =
      version === VERSION
        ? ok(`it answers, and is ${version}`)
        : warning(`it is ${version}, and this command is ${VERSION}`, 'systemctl restart imds-api')
    return [{ code: 'service', ...finding }, ...conditions]
  } catch (error) {
    const { message, cause } = error as Error & { cause?: Error }
    const text = `it does not answer: ${cause?.message ?? message}`
    return [{ code: 'service', ...failure(text, 'systemctl start imds-api, and see journalctl -u imds-api -n 50') }]
  }
}

async function stateRows(config: ApiConfig): Promise<readonly (readonly [name: string, text: string])[]> {
  const before = await sample(config)
  await sleep(INTERVAL_MS)
  const [after, answer] = await Promise.all([sample(config), ask(config, '/readyz', [200, 503])])
  const { ready, database, publishing } = (await answer.json()) as Record<string, unknown>
  const rate = ratesBetween(before, after)
  const last = (name: string) => after.metrics.get(name) ?? 0
  const requests = (matches: RegExp) => rate((name) => matches.test(name)).toFixed(1)
  const uptime = formatDuration(Date.now() / 1000 - last('process_start_time_seconds'))
  return [
    [
      'imds-api',
      `${runningVersion(after.metrics) ?? ''}, ${ready === true ? 'ready' : 'not ready'}, started ${uptime} ago`,
    ],
    ['database', String(database)],
    ['publishing', String(publishing)],
    [
      'requests',
      `${requests(/^imds_api_requests_total/)}/s, errors ${requests(/^imds_api_requests_total.*"5\d\d"/)}/s`,
    ],
    [
      'process',
      `${(last('process_resident_memory_bytes') / 2 ** 20).toFixed(0)} MiB, ${(rate((name) => name === 'process_cpu_seconds_total') * 100).toFixed(1)} % of a CPU, ${last('process_open_fds')} of ${last('process_max_fds')} descriptors`,
    ],
  ]
}

async function sample(config: ApiConfig): Promise<Sample> {
  return { metrics: parseMetrics(await (await ask(config, '/metrics')).text()), atMs: performance.now() }
}

/** Asks the listener for operators. Rejects if it does not answer, or with another status. */
async function ask({ operator }: ApiConfig, path: string, statuses: readonly number[] = [200]): Promise<Response> {
  const { passwordFile } = operator
  const headers: Record<string, string> =
    passwordFile === undefined
      ? {}
      : { authorization: `Basic ${Buffer.from(`imds-api:${readSecretFile(passwordFile)}`).toString('base64')}` }
  const response = await fetch(`http://${formatHostPort(operator)}${path}`, {
    headers,
    signal: AbortSignal.timeout(TIMEOUT_MS),
  })
  if (!statuses.includes(response.status)) throw new Error(`${path} has status ${response.status}`)
  return response
}
