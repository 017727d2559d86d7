/** What systemd has loaded of units, as it says itself: a change of a unit counts after `systemctl daemon-reload`. */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { parseGuestListener, type GuestListenAddress } from './guest-listeners.ts'

/** The properties of a unit: each with its values, one for each line. */
export type UnitProperties = ReadonlyMap<string, readonly string[]>

/** Asks for properties of units. Undefined: systemd does not run here, or does not answer this user. */
export type AskSystemd = (
  units: readonly string[],
  properties: readonly string[],
) => readonly UnitProperties[] | undefined

/** systemctl answers in some 10 ms. */
const ASK_TIMEOUT_MS = 5_000
/** It is there if systemd is the first process of this system (sd_booted(3)). */
const BOOTED = '/run/systemd/system'

/** What a command says if systemd is not asked. */
export const NO_SYSTEMD =
  'systemd does not run here, or does not answer this user: what its units and sockets say is not known'

export const askSystemd: AskSystemd = (units, properties) => {
  if (!existsSync(BOOTED)) return undefined
  const { status, stdout } = spawnSync('systemctl', ['show', `--property=${properties.join()}`, '--', ...units], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
    timeout: ASK_TIMEOUT_MS,
  })
  return status === 0 ? parseShown(stdout) : undefined
}

/** Parses the output of `systemctl show`: lines `PROPERTY=VALUE`, with an empty line between two units. */
export function parseShown(text: string): readonly UnitProperties[] {
  return text
    .trim()
    .split(/\n\n+/)
    .map((unit) => {
      const lines = unit.split('\n').map((line) => line.split(/=(.*)/s))
      const properties = Map.groupBy(lines, ([property = '']) => property)
      return new Map([...properties].map(([property, values]) => [property, values.map(([, value = '']) => value)]))
    })
}

export function valueOf(unit: UnitProperties | undefined, property: string): string {
  return unit?.get(property)?.[0] ?? ''
}

/** Where the sockets of a service listen, or will: those that are enabled or open. Undefined: systemd does not answer. */
export function askSockets(service: string, ask: AskSystemd): readonly GuestListenAddress[] | undefined {
  const shown = ask([service], ['TriggeredBy'])
  const names = valueOf(shown?.[0], 'TriggeredBy')
    .split(' ')
    .filter((name) => name.endsWith('.socket'))
  if (names.length === 0) return shown && []
  const sockets = ask(names, ['Id', 'UnitFileState', 'ActiveState', 'FileDescriptorName', 'Listen'])?.filter(
    (socket) => valueOf(socket, 'UnitFileState').startsWith('enabled') || valueOf(socket, 'ActiveState') === 'active',
  )
  const isOfNetwork = (socket: UnitProperties) => valueOf(socket, 'Id').startsWith('imds-network@')
  // a condition keeps imds.socket from starting beside those of networks
  const isKept = (socket: UnitProperties) => valueOf(socket, 'Id') !== 'imds.socket' || !sockets?.some(isOfNetwork)
  return sockets?.filter(isKept).flatMap((socket) =>
    (socket.get('Listen') ?? []).flatMap((listen) => {
      const address = listen.replace(/ \(\w+\)$/, '')
      return parseGuestListener(`${valueOf(socket, 'FileDescriptorName')}=${address}`) ?? []
    }),
  )
}
