/** Checks of the hypervisor around the daemon: its units and the clock. */
import { DEFAULT_NETWORK } from '../../metadata/identifiers.ts'
import { failure, ok, warning, type Finding } from '../../runtime/check.ts'
import { parseShown, valueOf, type UnitProperties } from '../../runtime/systemd-units.ts'
import type { DoctorCheck, DoctorState } from './hypervisor-state.ts'

/** A unit that should run, and be enabled if it `starts` at boot by itself. `severity`: what it means if it does not. */
interface ExpectedUnit {
  readonly name: string
  readonly starts: boolean
  readonly severity: 'warning' | 'failure'
}

/** The unit of the address, which is masked where the hypervisor has the address on a bridge. */
const ADDRESS_UNIT = 'imds-address.service'

/** The units of a configuration. imds.service wants the unit of the address, which need not be enabled. */
function expectedUnits({ settings: { config } }: DoctorState): ExpectedUnit[] {
  const named = (config?.expected ?? []).filter(({ network }) => network !== DEFAULT_NETWORK)
  const networks = [...new Set(named.map(({ network }) => `imds-network@${network}.socket`))]
  return [
    { name: 'imds.service', starts: true, severity: 'failure' },
    // with several networks in IMDS_LISTEN the daemon listens itself
    ...(networks.length === 0 && config?.needsFirewall !== true
      ? [{ name: 'imds.socket', starts: true, severity: 'warning' } as const]
      : []),
    ...networks.map((name) => ({ name, starts: true, severity: 'failure' }) as const),
    { name: ADDRESS_UNIT, starts: false, severity: 'warning' },
    ...(config?.firewall.required === true
      ? [{ name: 'imds-firewall.service', starts: true, severity: 'failure' } as const]
      : []),
  ]
}

const UNIT_PROPERTIES = 'Id,LoadState,UnitFileState,ActiveState,NeedDaemonReload'

export const units: DoctorCheck = {
  code: 'units',
  run: async (look) => {
    const expected = expectedUnits(look)
    const shown = await look.run([
      'systemctl',
      'show',
      `--property=${UNIT_PROPERTIES}`,
      ...expected.map(({ name }) => name),
    ])
    if (shown?.status !== 0) return [ok('not checked: systemd does not run here')]
    const states = parseShown(shown.stdout)
    return expected.map((unit) =>
      unitFinding(
        unit,
        states.find((state) => valueOf(state, 'Id') === unit.name),
      ),
    )
  },
}

function unitFinding({ name, starts, severity }: ExpectedUnit, state: UnitProperties | undefined): Finding {
  const [load, active] = [valueOf(state, 'LoadState'), valueOf(state, 'ActiveState')]
  const bad = severity === 'failure' ? failure : warning
  // systemd refuses to start a socket whose service runs; imds.service starts the sockets that are enabled
  const start = name.endsWith('.socket') ? 'systemctl restart imds.service' : `systemctl start ${name}`
  if (load === 'masked')
    return name === ADDRESS_UNIT
      ? ok(`${name} is masked: the address comes from elsewhere`)
      : bad(`${name} is masked, so it cannot start`, `systemctl unmask ${name}, then ${start}`)
  if (load !== 'loaded') return bad(`${name} is not installed (${load || 'unknown'})`, 'install imds again')
  const isDisabled = starts && valueOf(state, 'UnitFileState') !== 'enabled'
  if (active !== 'active')
    return bad(
      `${name} does not run (${active || 'unknown'})`,
      `see systemctl status ${name}, then ${isDisabled ? `systemctl enable ${name}, then ` : ''}${start}`,
    )
  if (isDisabled)
    return warning(`${name} runs and is not enabled: it does not start at boot`, `systemctl enable ${name}`)
  if (valueOf(state, 'NeedDaemonReload') === 'yes')
    return warning(
      `${name} has changed on the disk since it was loaded`,
      `systemctl daemon-reload, then restart ${name}`,
    )
  return ok(`${name} runs`)
}

export const clock: DoctorCheck = {
  code: 'clock',
  run: async (look) => {
    const shown = await look.run(['timedatectl', 'show', '--property=NTPSynchronized', '--value'])
    const isSynchronised = shown?.stdout.trim()
    if (isSynchronised === 'yes') return [ok('it is synchronised')]
    if (isSynchronised !== 'no') return []
    return [
      warning('it is not synchronised', 'set the clock, and start a time service such as systemd-timesyncd or chrony'),
    ]
  },
}
