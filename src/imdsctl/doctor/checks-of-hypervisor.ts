/** Checks of the hypervisor around the daemon: units, addresses, ports and the clock. */
import { DEFAULT_NETWORK } from '../../metadata/identifiers.ts'
import { compareListeners, parseGuestListeners } from '../../runtime/guest-listeners.ts'
import { formatHostPort, parseUnixSocket } from '../../runtime/host-port.ts'
import { failure, ok, warning, type Finding } from '../../runtime/check.ts'
import { parseShown, valueOf, type UnitProperties } from '../../runtime/systemd-units.ts'
import type { DoctorCheck, DoctorState } from './hypervisor-state.ts'
import type { CommandResult } from '../../runtime/command.ts'

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

/** The Debian packages of which one may be on a hypervisor. */
const PACKAGES = ['imds', 'imdsctl', 'imds-api', 'imds-node']
/** States of packages that are as they should be, or not here (dpkg-query(1)). */
const SETTLED = ['installed', 'config-files', 'not-installed']

export const packages: DoctorCheck = {
  code: 'packages',
  run: async ({ run }) => {
    // its status is 1 if one of them is not known
    const shown = await run(['dpkg-query', '--show', '--showformat=${Package} ${db:Status-Status}\n', ...PACKAGES])
    if (shown === undefined) return [ok('this system has no Debian packages')]
    const states = shown.stdout.split('\n').flatMap((line) => {
      const [name = '', state] = line.split(' ')
      return state === undefined || SETTLED.includes(state) ? [] : [{ name, state }]
    })
    if (states.length === 0) return [ok('no package is half installed')]
    return states.map(({ name, state }) =>
      warning(
        `the Debian package ${name} is ${state}: the version that runs may be the one before`,
        state === 'half-installed' ? `apt-get install --reinstall ${name}` : `dpkg --configure ${name}`,
      ),
    )
  },
}

/**
 * Where the daemon listens, or would listen if it ran, and the variables that say so. With sockets of systemd only a
 * running daemon knows.
 */
async function expectedAddresses({ firewall, settings: { config } }: DoctorState) {
  const answer = await firewall()
  const guests = answer.ok
    ? answer.value.listeners.map(({ address: host, port }) => ({ host, port }))
    : (config?.listen ?? []).flatMap((listener) =>
        listener.fd === undefined && listener.path === undefined ? [listener] : [],
      )
  const operator = answer.ok
    ? { host: answer.value.operator.address, port: answer.value.operator.port }
    : config?.operator
  return [
    ...guests.map(({ host, port }) => ({ variable: 'IMDS_LISTEN', host, port })),
    ...(operator === undefined ? [] : [{ variable: 'IMDS_OPERATOR_LISTEN', host: operator.host, port: operator.port }]),
  ].filter(({ port }) => port !== 0)
}

export const listeners: DoctorCheck = {
  code: 'listeners',
  run: async ({ firewall, settings: { variables } }) => {
    const [answer, text] = [await firewall(), variables['IMDS_LISTEN']]
    if (!answer.ok || text === undefined) return []
    const { unserved, unlisted } = compareListeners(
      parseGuestListeners(text),
      answer.value.listeners.map(({ network, address: host, port }) => ({ network, host, port })),
    )
    if (unserved.length + unlisted.length === 0) return [ok(`it listens at ${text}`)]
    return [
      ...unserved.map((place) =>
        failure(`IMDS_LISTEN names ${place}, and imdsd does not listen there`, CHANGE_LISTENERS),
      ),
      ...unlisted.map((place) =>
        warning(
          `imdsd listens at ${place}, which IMDS_LISTEN does not name: imds-firewall admits no guest there`,
          CHANGE_LISTENERS,
        ),
      ),
    ]
  },
}
const CHANGE_LISTENERS =
  'correct IMDS_LISTEN or the sockets of systemd that replace it, then systemctl restart imds: docs/install.md#change-where-imdsd-listens'

export const ports: DoctorCheck = {
  code: 'ports',
  run: async (look) => {
    const [expected, tcp, unix] = await Promise.all([
      expectedAddresses(look),
      look.run(['ss', '-Hltnp']),
      look.run(['ss', '-Hlxp']),
    ])
    if (tcp?.status !== 0) return [warning('not checked: ss cannot be run', 'install the Debian package iproute2')]
    const socket = parseUnixSocket(look.operator)?.path
    const own = socketsOf(unix, (words) => socket !== undefined && words.includes(socket)).flatMap(({ holders }) =>
      holders.map(({ pid }) => pid),
    )
    return expected.map(({ variable, host, port }) => {
      const address = formatHostPort({ host, port })
      const found = socketsOf(tcp, (words) => isAt(words[3] ?? '', host, port))
      const holders = found.flatMap((socket) => socket.holders)
      if (found.length === 0)
        return failure(`nothing listens at ${address} (${variable})`, 'systemctl start imds.socket imds')
      if (holders.length === 0)
        return look.isRoot
          ? ok(`${address} is taken`)
          : warning(`only root can see who has ${address}`, 'run this as root')
      const others = holders.filter(({ pid }) => pid !== SYSTEMD && !own.includes(pid))
      return others.length === 0
        ? ok(`imdsd has ${address}`)
        : failure(
            `${others.map(({ name, pid }) => `${name} (process ${pid})`).join(' and ')} has ${address} (${variable})`,
            'end the other program, or correct the variable',
          )
    })
  },
}
/** systemd holds the sockets that it passes to the daemon. */
const SYSTEMD = 1

/** The sockets that ss lists and that match, with their processes. */
function socketsOf(ran: CommandResult | undefined, matches: (words: readonly string[]) => boolean) {
  return (ran?.stdout ?? '')
    .split('\n')
    .filter((line) => matches(line.split(/\s+/)))
    .map((line) => ({
      holders: [...line.matchAll(/\("([^"]*)",pid=(\d+),/g)].map(([, name = '', pid]) => ({ name, pid: Number(pid) })),
    }))
}

/** True for a local address of ss, such as `169.254.169.254:80`, `[::1]%lo:80` or `*:80`. */
function isAt(text: string, host: string, port: number): boolean {
  const [, local = '', number] = /^(.*):(\d+)$/.exec(text) ?? []
  const address = local.replace(/%[^\]]*/, '').replace(/^\[|\]$/g, '')
  return Number(number) === port && [host, '*', '0.0.0.0', '::'].includes(address)
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
