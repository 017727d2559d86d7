/**
 * The interface to systemd: the sockets that it passes to the daemon, so that a restart refuses no connection
 * (sd_listen_fds(3)), and notifications that a service is ready and that its event loop runs (sd_notify(3)). Node has
 * no unix datagram sockets, so the program systemd-notify sends the notifications; the unit needs NotifyAccess=all.
 * Without systemd this does nothing.
 */
import { spawn } from 'node:child_process'
import type { Log } from './log-codes.ts'

/** A socket that systemd passed to the daemon. `name`: FileDescriptorName= of its unit. */
export interface PassedSocket {
  readonly fd: number
  readonly name: string
}

const FIRST_FD = 3

/** The sockets that systemd passed to the process `pid`: LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES. */
export function inheritedSockets(
  env: Readonly<Record<string, string | undefined>>,
  pid: number,
): readonly PassedSocket[] {
  if (env['LISTEN_PID'] !== String(pid)) return []
  const names = (env['LISTEN_FDNAMES'] ?? '').split(':')
  return Array.from({ length: Number(env['LISTEN_FDS'] ?? 0) }, (_, i) => ({ fd: FIRST_FD + i, name: names[i] ?? '' }))
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
