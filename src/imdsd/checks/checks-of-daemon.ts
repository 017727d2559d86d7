/** Checks of the daemon: its configuration, version and state. */
import { formatInstances } from './amounts.ts'
import type { Check, DaemonCheck, Finding } from './check.ts'
import { failure, ok, warning } from './check.ts'
import type { MetricValues } from './host-state.ts'

/** The part of the configuration that `stateDirectory` checks (checks-of-files.ts). */
export const STATE_VARIABLE = 'IMDS_STATE_DIR'

export const configuration: Check = {
  name: 'configuration',
  what: 'the variables of imds.service, and the files that they name, are valid',
  remedy: 'correct it in /etc/imds/imds.env, and restart imds',
  find: ({ settings: { faults, unknown } }) => {
    const others = faults.filter(({ variable }) => variable !== STATE_VARIABLE)
    const found: readonly Finding[] = [
      ...others.map(({ variable, message }) => failure(`${variable} ${message}`)),
      ...unknown.map((name) => warning(`${name} is no variable of imdsd, and is ignored`)),
    ]
    return found.length > 0 ? found : [ok('it is valid')]
  },
}

export const daemon: DaemonCheck = {
  name: 'daemon',
  what: 'imdsd answers and is ready',
  remedy: 'see journalctl -u imds -n 50',
  find: async ({ readiness }) => {
    const read = await readiness()
    if (!read.ok) return read.faults.map((fault) => failure(fault))
    const { ready, problem = 'it is not ready' } = read.value
    return [ready ? ok('it is ready') : failure(problem)]
  },
}

export const version: Check = {
  name: 'version',
  what: 'imdsd and imdsctl have the same version',
  remedy: 'restart imds',
  find: async ({ metrics, version: own }) => {
    const read = await metrics()
    if (!read.ok) return []
    const running = labelOf(read.value, 'imds_build_info', 'version')
    return [
      running === own
        ? ok(`imdsd and imdsctl are ${own}`)
        : warning(`imdsd is ${running ?? 'of an unknown version'}, and imdsctl is ${own}`),
    ]
  },
}

export const descriptors: DaemonCheck = {
  name: 'descriptors',
  what: 'imdsd has enough file descriptors for connections',
  remedy: 'raise LimitNOFILE= in a drop-in of imds.service, and find out with ss who holds the connections',
  find: async ({ metrics }) => {
    const read = await metrics()
    if (!read.ok) return []
    const [open, most] = [read.value.get('process_open_fds'), read.value.get('process_max_fds')]
    if (open === undefined || most === undefined) return []
    const dropped = read.value.get('imds_connections_dropped_total{reason="descriptors"}') ?? 0
    const text = `${String(open)} of ${String(most)} are open`
    if (open > most * NEARLY_ALL) return [failure(text)]
    return [
      dropped > 0
        ? warning(`${text}, and ${String(dropped)} connections of guests were dropped since the start to free some`)
        : ok(text),
    ]
  },
}
const NEARLY_ALL = 0.9

export const records: DaemonCheck = {
  name: 'records',
  what: 'every record of this hypervisor can be served',
  remedy: 'the warnings in journalctl -u imds name the instances and the remedy',
  find: async ({ readiness }) => {
    const read = await readiness()
    if (!read.ok) return []
    const { instances, faulty, unconfirmed, contestedAddresses, contested = [], hint } = read.value
    const found: readonly Finding[] = [
      ...(faulty > 0 ? [warning(`${String(faulty)} records are faulty`)] : []),
      ...(unconfirmed > 0
        ? [warning(`${String(unconfirmed)} instances are served although the store no longer has them`)]
        : []),
      ...(contestedAddresses > 0
        ? [
            warning(
              [`${String(contestedAddresses)} addresses are claimed by more than one instance`, ...contested].join(
                '; ',
              ),
            ),
          ]
        : []),
      ...(hint === undefined ? [] : [warning(hint, 'compare IMDS_HYPERVISOR with the names that imdsctl list prints')]),
    ]
    return found.length > 0 ? found : [ok(`it serves ${formatInstances(instances)}`)]
  },
}

/** The value of a label of a metric that has one series. */
export function labelOf(metrics: MetricValues, name: string, label: string): string | undefined {
  const series = [...metrics.keys()].find((one) => one.startsWith(`${name}{`))
  return series === undefined ? undefined : new RegExp(`[{,]${label}="([^"]*)"`).exec(series)?.[1]
}
