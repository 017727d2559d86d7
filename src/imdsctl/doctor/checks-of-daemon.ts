/** Checks of the daemon: its configuration, version, and whether it answers. */
import { formatCount } from '../../runtime/amounts.ts'
import { failure, ok, warning, type Finding } from '../../runtime/check.ts'
import type { DoctorCheck } from './hypervisor-state.ts'

export const configuration: DoctorCheck = {
  code: 'configuration',
  run: ({ settings: { faults, unknown, replaced } }) => {
    const where = (variable: string) =>
      replaced.includes(variable) ? 'in this shell' : 'in /etc/imds/imds.env, then systemctl restart imds'
    const found: Finding[] = faults.map(({ variable, message }) =>
      failure(`${variable} ${message}`, `correct it ${where(variable)}`),
    )
    if (replaced.length > 0) {
      const text = `variables of this shell replace those of imds.service: ${replaced.join(', ')}`
      found.unshift(warning(text, 'unset them, or add --service'))
    }
    for (const name of unknown)
      found.push(warning(`${name} is no variable of imdsd, and is ignored`, `correct or delete it ${where(name)}`))
    return found.length > 0 ? found : [ok('it is valid')]
  },
}

export const daemon: DoctorCheck = {
  code: 'daemon',
  run: async ({ readiness, settings: { config } }) => {
    const read = await readiness()
    if (!read.ok)
      return read.faults.map((fault) => failure(fault, 'systemctl start imds, and see journalctl -u imds -n 50'))
    const { ready, store: used, instances } = read.value
    const configured =
      config === undefined ? used : config.store.kind === 'files' ? `file:${config.store.directory}` : config.store.url
    return used === configured
      ? [ok(`it answers, is ${ready ? 'ready' : 'not ready'} and serves ${formatCount(instances, 'instance')}`)]
      : [failure(`imdsd uses ${used}, and the configuration has ${configured}`, 'systemctl restart imds')]
  },
}

export const version: DoctorCheck = {
  code: 'version',
  run: async ({ readiness, version: own }) => {
    const read = await readiness()
    if (!read.ok) return []
    const { version: running } = read.value
    return [
      running === own
        ? ok(`imdsd and imdsctl are ${own}`)
        : warning(`imdsd is ${running}, and imdsctl is ${own}`, remedyOf(running, own)),
    ]
  },
}

/** The packages of imds and imdsctl have one version: of a newer one the daemon was not restarted, an older one is mixed. */
function remedyOf(running: string, own: string): string {
  const isOlder = own.localeCompare(running, 'en', { numeric: true }) < 0
  return isOlder
    ? `install imdsctl ${running} and restart imds-firewall: its agent is of imdsctl`
    : 'systemctl restart imds'
}
