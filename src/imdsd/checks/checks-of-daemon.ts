/** Checks of the daemon: its configuration, version and state. */
import { formatCount } from './amounts.ts'
import { failure, ok, warning, type Finding } from '../../runtime/check.ts'
import { runningVersion } from '../../runtime/metric-values.ts'
import type { DaemonCheck, DoctorCheck } from './hypervisor-state.ts'

/** The part of the configuration that `stateDirectory` checks (checks-of-files.ts). */
export const STATE_VARIABLE = 'IMDS_STATE_DIR'

export const configuration: DoctorCheck = {
  name: 'configuration',
  what: 'the variables of imds.service, and the files that they name, are valid',
  find: ({ settings: { faults, unknown, replaced } }) => {
    const where = (variable: string) =>
      replaced.includes(variable) ? 'in this shell' : 'in /etc/imds/imds.env, then systemctl restart imds'
    const found: Finding[] = faults
      .filter(({ variable }) => variable !== STATE_VARIABLE)
      .map(({ variable, message }) => failure(`${variable} ${message}`, `correct it ${where(variable)}`))
    if (replaced.length > 0) {
      const text = `variables of this shell replace those of imds.service: ${replaced.join(', ')}`
      found.unshift(warning(text, 'unset them, or add --service'))
    }
    for (const name of unknown)
      found.push(warning(`${name} is no variable of imdsd, and is ignored`, `correct or delete it ${where(name)}`))
    return found.length > 0 ? found : [ok('it is valid')]
  },
}

export const daemon: DaemonCheck = {
  name: 'daemon',
  what: 'imdsd answers and is ready',
  find: async ({ readiness }) => {
    const read = await readiness()
    if (!read.ok)
      return read.faults.map((fault) => failure(fault, 'systemctl start imds, and see journalctl -u imds -n 50'))
    const { ready, problem = 'it is not ready' } = read.value
    return [ready ? ok('it is ready') : failure(problem, 'journalctl -u imds -n 50 has more about it')]
  },
}

export const version: DoctorCheck = {
  name: 'version',
  what: 'imdsd and imdsctl have the same version',
  find: async ({ metrics, version: own }) => {
    const read = await metrics()
    if (!read.ok) return []
    const running = runningVersion(read.value)
    return [
      running === own
        ? ok(`imdsd and imdsctl are ${own}`)
        : warning(`imdsd is ${running ?? 'of an unknown version'}, and imdsctl is ${own}`, remedyOf(running, own)),
    ]
  },
}

/** The packages of imds and imdsctl have one version: of a newer one the daemon was not restarted, an older one is mixed. */
function remedyOf(running: string | undefined, own: string): string {
  const isOlder = running !== undefined && own.localeCompare(running, 'en', { numeric: true }) < 0
  return isOlder
    ? `install imdsctl ${running} and restart imds-firewall: its agent is of imdsctl`
    : 'systemctl restart imds'
}

export const descriptors: DaemonCheck = {
  name: 'descriptors',
  what: 'imdsd has enough file descriptors for connections',
  find: async ({ metrics }) => {
    const read = await metrics()
    if (!read.ok) return []
    const [open, most] = [read.value.get('process_open_fds'), read.value.get('process_max_fds')]
    if (open === undefined || most === undefined) return []
    const dropped = read.value.get('imds_connections_dropped_total{reason="descriptors"}') ?? 0
    const text = `${open} of ${most} are open`
    if (open > most * NEARLY_ALL)
      return [
        failure(text, 'find out with ss who has the connections, and raise LimitNOFILE= in a drop-in of imds.service'),
      ]
    const history = `; ${dropped} connections of guests were dropped since the start to free some`
    return [ok(dropped > 0 ? text + history : text)]
  },
}
const NEARLY_ALL = 0.9

export const records: DaemonCheck = {
  name: 'records',
  what: 'every record of this hypervisor can be served',
  find: async ({ readiness }) => {
    const read = await readiness()
    if (!read.ok) return []
    const { instances, storeBehind, faulty, unconfirmed, contestedAddresses, unconfirmedAddresses, hint } = read.value
    const { faultyRecords = [], unconfirmedInstances = [], contested = [], waiting = [] } = read.value
    const isEmptied = unconfirmed > 0 && unconfirmed === instances
    const found: Finding[] = []
    if (storeBehind === true)
      found.push(
        failure(
          'Redis has lost changes: guests are served from memory',
          'publish the region again: imdsctl republish (imds-api does it by itself)',
        ),
      )
    if (faulty > 0)
      found.push(
        warning(
          listed(`${formatCount(faulty, 'record')} cannot be used`, faultyRecords),
          'publish them again, corrected; journalctl -u imds | grep record-faulty names all',
        ),
      )
    if (unconfirmed > 0) {
      const text = `${formatCount(unconfirmed, 'instance')} that the store no longer has: served nevertheless`
      found.push(
        warning(
          listed(text, unconfirmedInstances),
          isEmptied
            ? 'Redis was probably emptied: publish again (imdsctl import; imds-api does it by itself)'
            : 'publish those that still run again; for each other run imdsctl remove ID --revision N',
        ),
      )
    }
    if (contestedAddresses > 0) {
      const text = `${formatCount(contestedAddresses, 'address', 'addresses')} claimed by several instances`
      found.push(
        warning(
          listed(text, contested),
          'publish the wrong instance without the address, or imdsctl remove it if it is gone',
        ),
      )
    }
    if (unconfirmedAddresses > 0) {
      const text = `${formatCount(unconfirmedAddresses, 'address', 'addresses')} waiting for the rules of the firewall`
      found.push(warning(listed(text, waiting), 'systemctl restart imds-firewall, and see journalctl -u imds-firewall'))
    }
    if (hint !== undefined && !isEmptied)
      found.push(warning(hint, 'correct IMDS_HYPERVISOR, unless this hypervisor is new'))
    return found.length > 0 ? found : [ok(`it serves ${formatCount(instances, 'instance')}`)]
  },
}

/** How many of them are named. */
const MAX_NAMED = 3

/** A text with the first of some things. */
function listed(text: string, things: readonly string[]): string {
  return [text, ...things.slice(0, MAX_NAMED)].join('; ')
}
