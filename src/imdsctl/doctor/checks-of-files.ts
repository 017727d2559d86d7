/** Checks of files: keys, and the journal. */
import { join } from 'node:path'
import { formatDuration } from '../../runtime/ago.ts'
import { formatCount } from '../../runtime/amounts.ts'
import { ok, warning, type Finding } from '../../runtime/check.ts'
import { namesSecrets } from '../../runtime/setting-files.ts'
import type { DoctorCheck, DoctorState } from './hypervisor-state.ts'

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
  code: 'key-files',
  what: 'no other user can read or replace the files of keys and passwords',
  run: (look) => {
    const seen = secretFiles(look.settings).flatMap((path) => {
      const file = look.file(path)
      return file.kind === 'unseen' ? [] : [{ path, mode: file.mode }]
    })
    const found = seen.flatMap(({ path, mode }): Finding[] => {
      const text = `${path} has mode ${formatMode(mode)}`
      if ((mode & READABLE_BY_ALL) !== 0)
        return [warning(`${text}: every user can read it`, `chmod o= ${path}, and replace the secret in it`)]
      if ((mode & WRITABLE_BY_OTHERS) !== 0)
        return [warning(`${text}: other users can replace its content`, `chmod go-w ${path}`)]
      return []
    })
    if (found.length > 0) return found
    return seen.length === 0 ? [] : [ok(`${seen.length} files of secrets are closed to other users`)]
  },
}

/** What a state directory needs beside the journal: what is appended meanwhile, and the key. */
const SPARE_BYTES = 16 * 1024 * 1024

export const journal: DoctorCheck = {
  code: 'journal',
  what: 'imdsd can serve the journal of its view if it starts without the store',
  run: async (look) => {
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
        return [warning(text, isFull ? 'make room on its disk' : NEXT_JOURNAL)]
      }
      case 'unreadable':
        return [warning(`it is not served if imdsd starts without the store: ${found.reason}`, NEXT_JOURNAL)]
      case 'read': {
        const text = `${formatCount(found.instances, 'instance')}, compared with the store ${formatDuration(found.ageMs / 1000)} ago`
        if (found.ageMs < 0) {
          const isServed = -found.ageMs <= config.journalMaxAgeMs
          const served = isServed ? '' : ', and it is not served if imdsd starts without the store'
          return [warning(`it is from the future: the clock was set back${served}`, 'set the clock')]
        }
        return found.ageMs > config.journalMaxAgeMs
          ? [warning(`it is stale, and not served if imdsd starts without the store: ${text}`, NEXT_JOURNAL)]
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
