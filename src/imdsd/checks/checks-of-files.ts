/** Checks of files: keys, a certificate, the state directory and the journal. */
import { join } from 'node:path'
import { formatDuration } from '../../runtime/ago.ts'
import { formatBytes, formatCount } from './amounts.ts'
import { failure, ok, warning, type Finding } from '../../runtime/check.ts'
import { namesSecrets } from '../../runtime/setting-files.ts'
import { STATE_VARIABLE } from './checks-of-daemon.ts'
import type { DaemonCheck, DoctorCheck, DoctorState } from './hypervisor-state.ts'
import { journalPath } from '../journal/state-files.ts'

/** Files of secrets: those that variables name, and the daemon's own key. */
function secretFiles({ variables, config }: DoctorState['settings']): string[] {
  const named = Object.entries(variables).flatMap(([name, path = '']) =>
    namesSecrets(name) && path !== '' ? [path] : [],
  )
  return [...named, ...(config === undefined ? [] : [join(config.stateDirectory, 'token-key')])]
}

const READABLE_BY_ALL = 0o004
const WRITABLE_BY_OTHERS = 0o022

export const keyFiles: DoctorCheck = {
  name: 'key-files',
  what: 'no other user can read or replace the files of keys and passwords',
  find: (look) => {
    const seen = secretFiles(look.settings).flatMap((path) => {
      const file = look.file(path)
      return file.kind === 'unseen' ? [] : [{ path, mode: file.mode }]
    })
    const found = seen.flatMap(({ path, mode }): Finding[] => {
      const text = `${path} has mode ${formatMode(mode)}`
      if ((mode & READABLE_BY_ALL) !== 0)
        return [failure(`${text}: every user can read it`, `chmod o= ${path}, and replace the secret in it`)]
      if ((mode & WRITABLE_BY_OTHERS) !== 0)
        return [failure(`${text}: other users can replace its content`, `chmod go-w ${path}`)]
      return []
    })
    if (found.length > 0) return found
    return seen.length === 0 ? [] : [ok(`${seen.length} files of secrets are closed to other users`)]
  },
}

const DAY_MS = 86_400_000
const EXPIRES_SOON_MS = 30 * DAY_MS

export const identity: DaemonCheck = {
  name: 'identity',
  what: 'the certificate of identity documents is valid for at least another 30 days',
  find: ({ settings: { config } }) => {
    if (config?.identity === undefined) return []
    const { validFromDate, validToDate } = config.identity.certificate
    const [validInMs, expiresInMs] = [validFromDate.getTime() - Date.now(), validToDate.getTime() - Date.now()]
    const [validIn, expiresIn, ago] = [validInMs, expiresInMs, -expiresInMs].map((ms) => formatDuration(ms / 1000))
    if (expiresInMs <= 0) return [failure(`the certificate expired ${ago!} ago: verifiers may reject documents`, RENEW)]
    if (validInMs > 0)
      return [
        failure(
          `the certificate is not valid for another ${validIn!}: verifiers may reject documents`,
          'set the clock, or replace the certificate: docs/configuration.md#identity-keys has the steps',
        ),
      ]
    const text = `the certificate expires in ${expiresIn!}`
    return [expiresInMs < EXPIRES_SOON_MS ? warning(text, RENEW) : ok(text)]
  },
}

const RENEW = 'replace the key and its certificate: docs/configuration.md#identity-keys has the steps'

/** What a state directory needs beside a second copy of the journal: what is appended meanwhile, and the key. */
const SPARE_BYTES = 16 * 1024 * 1024

export const stateDirectory: DaemonCheck = {
  name: 'state-directory',
  what: 'imdsd can write to its state directory, which has space and is closed to other users',
  find: async (look) => {
    const { config, faults } = look.settings
    const found = faults
      .filter(({ variable }) => variable === STATE_VARIABLE)
      .map(({ variable, message }) =>
        failure(`${variable}: ${message}`, 'correct it, or the owner (imds) and the mode (0700) of the directory'),
      )
    if (config === undefined) return found
    const directory = config.stateDirectory
    const file = look.file(directory)
    if (file.kind === 'unseen')
      return [...found, warning(`${directory} cannot be seen: ${file.code}`, 'run this as root, and look at its disk')]
    if ((file.mode & 0o077) !== 0)
      found.push(
        failure(`${directory} has mode ${formatMode(file.mode)}: other users can enter it`, `chmod 700 ${directory}`),
      )
    const kept = look.file(journalPath(directory))
    const bytes = kept.kind === 'file' ? kept.size : 0
    const free = look.freeBytes(directory)
    if (free !== undefined && free < bytes + SPARE_BYTES)
      found.push(
        warning(
          `${directory} has ${formatBytes(free)} left, and the journal has ${formatBytes(bytes)}`,
          'make room on its disk',
        ),
      )
    const metrics = await look.metrics()
    const metric = (name: string) => (metrics.ok ? (metrics.value.get(name) ?? 0) : 0)
    const [changes, rewrites] = ['imds_journal_writes_total', 'imds_journal_rewrites_total'].map((name) =>
      metric(`${name}{result="failed"}`),
    ) as [number, number]
    const history = `since its start imdsd could not write ${formatCount(changes, 'change')} and rewrite its journal ${formatCount(rewrites, 'time')}`
    if (metric('imds_state_writes_failing') > 0)
      found.push(warning(`writes fail: ${history}`, 'make room or repair the disk; imdsd tries again every 30 s'))
    if (found.length > 0) return found
    const left = free === undefined ? '' : `, with ${formatBytes(free)} left`
    return [ok(`${directory} can be written${left}${changes + rewrites > 0 ? `; ${history}` : ''}`)]
  },
}

export const journal: DoctorCheck = {
  name: 'journal',
  what: 'imdsd can serve the journal of its view if it starts without the store',
  find: async (look) => {
    const { config } = look.settings
    if (config === undefined) return []
    const [found, ready] = await Promise.all([look.journal(), look.readiness()])
    // the journal of another hypervisor may be there: this one was renamed
    if (found.kind !== 'read' && ready.ok && ready.value.instances === 0)
      return [ok('there is none, and imdsd serves no instance')]
    switch (found.kind) {
      case 'none': {
        const free = look.freeBytes(config.stateDirectory)
        const isFull = free !== undefined && free < SPARE_BYTES
        const text = `there is none${isFull ? ', and no room for one' : ''}: guests get 503 if imdsd starts without the store`
        return [isFull ? failure(text, 'make room on its disk') : warning(text, NEXT_JOURNAL)]
      }
      case 'unreadable':
        return [failure(`it is not served if imdsd starts without the store: ${found.reason}`, NEXT_JOURNAL)]
      case 'read': {
        const text = `${formatCount(found.instances, 'instance')}, compared with the store ${formatDuration(found.ageMs / 1000)} ago`
        if (found.ageMs < 0) {
          const isServed = -found.ageMs <= config.journalMaxAgeMs
          const served = isServed ? '' : ', and it is not served if imdsd starts without the store'
          return [
            (isServed ? warning : failure)(`it is from the future: the clock was set back${served}`, 'set the clock'),
          ]
        }
        return found.ageMs > config.journalMaxAgeMs
          ? [failure(`it is stale, and not served if imdsd starts without the store: ${text}`, NEXT_JOURNAL)]
          : [ok(text)]
      }
    }
  },
}

const NEXT_JOURNAL =
  'imdsd writes it again after its next full comparison with the store; if not, see journalctl -u imds -n 50'

function formatMode(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}
