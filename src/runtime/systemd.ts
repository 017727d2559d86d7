/**
 * What passes between systemd and the daemon?
 *
 * Sockets that systemd holds for us, so that a restart refuses no connection (sd_listen_fds(3)); the word that we are ready, and a sign of
 * life for its watchdog (sd_notify(3)). Node has no datagram sockets, so the word goes through the program systemd-notify: the unit says
 * NotifyAccess=all. Without systemd, nothing here does anything.
 */
import { spawn } from 'node:child_process'
import type { Logger } from 'pino'

/** A listening socket that was handed to us: its file descriptor and the FileDescriptorName= of its unit. */
export interface InheritedSocket { readonly fd: number, readonly name: string }

const FIRST_FD = 3

/** The sockets that the environment says are ours (`pid`): LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES. */
export function inheritedSockets(env: Readonly<Record<string, string | undefined>>, pid: number): InheritedSocket[] {
  if (env['LISTEN_PID'] !== String(pid)) return []
  const names = (env['LISTEN_FDNAMES'] ?? '').split(':')
  return Array.from({ length: Number(env['LISTEN_FDS'] ?? 0) }, (_, i) => ({ fd: FIRST_FD + i, name: names[i] ?? '' }))
}

/** Tells systemd that the daemon listens, and from then on that its event loop turns, where `env` says that it wants to know. */
export function superviseBy(env: Readonly<Record<string, string | undefined>>, log: Logger): void {
  if (env['NOTIFY_SOCKET'] === undefined) return
  let isBroken = false
  const complain = (details: object) => {
    if (!isBroken) log.warn(details, 'systemd cannot be told of our state')
    isBroken = true
  }
  const tell = (state: string) => {
    spawn('systemd-notify', [state], { stdio: 'ignore', env: { PATH: env['PATH'], NOTIFY_SOCKET: env['NOTIFY_SOCKET'] } })
      .on('error', (error) => { complain({ err: error }) })
      .on('exit', (status) => { if (status !== 0 && status !== null) complain({ status }) }) // null: a stop of the unit ends it too
  }
  tell('READY=1')
  const watchdogMs = Number(env['WATCHDOG_USEC'] ?? 0) / 1000
  if (watchdogMs > 0) setInterval(() => { tell('WATCHDOG=1') }, watchdogMs / 3)
}
