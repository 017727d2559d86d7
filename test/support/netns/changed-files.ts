/** What a test has left on a bare host (booted-host.ts). */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { BootedHost } from './booted-host.ts'

/**
 * What other processes than imds leave on a host: systemd's state, the databases of users and packages, npm's cache and
 * logs, and the test's own files. /etc/sysusers.d is a directory of systemd, which an install may be the first to need.
 */
const OTHERS =
  /^\/changes\/((units|store|srv|log|root|var\/(log|cache|tmp|lib\/(systemd|apt|dpkg)))(\/|$)|etc\/((passwd|shadow|group|gshadow|subuid|subgid)-?|\.pwd\.lock|sysusers\.d)$)/

/** The type and path of each file that differs from those with which the host has booted. */
export async function changedFiles(host: BootedHost): Promise<string[]> {
  const find = 'find /changes /etc/systemd /usr/lib/systemd/system -xdev -printf "%y %p\\n" | sort'
  const lines = (await host.shell(find)).split('\n').filter((line) => line !== '')
  // A directory that was there before is in /changes once anything was written in it.
  return lines.filter(
    (line) =>
      !OTHERS.test(line.slice(2)) &&
      !(line.startsWith('d /changes') && existsSync(join(host.files, line.slice('d /changes'.length)))),
  )
}
