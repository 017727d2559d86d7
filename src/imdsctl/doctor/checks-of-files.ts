/** The check of the files of keys and passwords. */
import { join } from 'node:path'
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

function formatMode(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}
