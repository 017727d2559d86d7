/**
 * The interface to systemd: the sockets that it passes to the daemon, so that a restart refuses no connection
 * (sd_listen_fds(3)), and notifications that a service is ready and that its event loop runs (sd_notify(3)). Node has
 * no unix datagram sockets, so the program systemd-notify sends the notifications; the unit needs NotifyAccess=all.
 * Without systemd this does nothing.
 */
import { spawn } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Log } from './log-codes.ts'

/**
 * What systemd says about sockets: those that it passed to the daemon (`name`: FileDescriptorName= of its unit), and the
 * networks whose imds-network@NETWORK.socket is enabled. `faults`: why it is not known which networks these are.
 */
export interface SystemdSockets {
  readonly passed: readonly { readonly fd: number; readonly name: string }[]
  readonly enabled: readonly string[]
  readonly faults?: readonly string[]
}

export const NO_SOCKETS: SystemdSockets = { passed: [], enabled: [] }

/**
 * Where units are, the highest priority first: a file hides those of the same name in later directories.
 * systemd/imds.socket has the same.
 */
export const UNIT_DIRECTORIES: readonly string[] = ['/etc', '/run', '/usr/local/lib', '/usr/lib'].map(
  (root) => `${root}/systemd/system`,
)
/**
 * The ends of the directories of links to the units that another unit wants or requires. systemd/imds.socket has the
 * same.
 */
export const LINKS: readonly string[] = ['.wants', '.requires']

const FIRST_FD = 3

/** The sockets that systemd passed to the process `pid`: LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES. */
export function inheritedSockets(
  env: Readonly<Record<string, string | undefined>>,
  pid: number,
): SystemdSockets['passed'] {
  if (env['LISTEN_PID'] !== String(pid)) return []
  const names = (env['LISTEN_FDNAMES'] ?? '').split(':')
  return Array.from({ length: Number(env['LISTEN_FDS'] ?? 0) }, (_, i) => ({ fd: FIRST_FD + i, name: names[i] ?? '' }))
}

/**
 * The networks whose imds-network@NETWORK.socket is enabled on this machine, whether or not it runs: any unit wants or
 * requires it, by a link. (Wants= in the text of a unit is not seen.)
 */
export function enabledNetworks(
  directories: readonly string[] = UNIT_DIRECTORIES,
): Pick<SystemdSockets, 'enabled' | 'faults'> {
  const { sockets, faults } = enabledSockets(directories)
  return { enabled: sockets.flatMap((name) => /^imds-network@(.+)\.socket$/.exec(name)?.[1] ?? []), faults }
}

/** The sockets of the daemon that are enabled, by the names of their units, in order. `faults`: as of SystemdSockets. */
export function enabledSockets(directories: readonly string[] = UNIT_DIRECTORIES): {
  readonly sockets: readonly string[]
  readonly faults: readonly string[]
} {
  const faults: string[] = []
  const list = (directory: string) => namesIn(directory, (message) => faults.push(message))
  const isOfLinks = (name: string) => LINKS.some((end) => name.endsWith(end))
  const names = directories.flatMap((directory) =>
    list(directory)
      .filter(isOfLinks)
      .flatMap((name) => list(join(directory, name))),
  )
  const sockets = [...new Set(names.filter((name) => /^imds(-(network|ipv6)@.+)?\.socket$/.test(name)))].sort()
  return { sockets, faults }
}

/** The names in a directory; none if it cannot be read. `onFault` gets the reason, unless there is no directory. */
export function namesIn(directory: string, onFault?: (message: string) => void): string[] {
  try {
    return readdirSync(directory)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (code !== 'ENOENT')
      onFault?.(
        `may be replaced by a unit that is enabled in ${directory}, which cannot be read: ` +
          (code === 'EACCES' ? `EACCES; run chmod 755 ${directory}` : message),
      )
    return []
  }
}

/** Notifies systemd that the service is ready, and then regularly that its event loop runs, if `env` asks for it. */
export function superviseBy(env: Readonly<Record<string, string | undefined>>, log: Log): void {
  if (env['NOTIFY_SOCKET'] === undefined) return
  let isBroken = false
  const warn = (details: object) => {
    if (!isBroken)
      log.warn({ code: 'systemd-not-notified', ...details }, 'cannot notify systemd of the state of this service')
    isBroken = true
  }
  const notify = (state: string) => {
    spawn('systemd-notify', [state], {
      stdio: 'ignore',
      env: { PATH: env['PATH'], NOTIFY_SOCKET: env['NOTIFY_SOCKET'] },
    })
      .on('error', (error) => warn({ err: error }))
      .on('exit', (status) => {
        if (typeof status === 'number' && status !== 0) warn({ status })
      }) // no status: ended by a stop of the unit
  }
  notify('READY=1')
  const watchdogMs = Number(env['WATCHDOG_USEC'] ?? 0) / 1000
  if (watchdogMs > 0)
    setInterval(() => {
      notify('WATCHDOG=1')
    }, watchdogMs / 3)
}
