/** The files that the variables of imds-api name, as the service will read them. */
import { asUser } from '../../runtime/other-user.ts'
import type { ServiceEnvironment } from '../../runtime/service-environment.ts'
import { settingFileFaults } from '../../runtime/setting-files.ts'
import { readTextFile } from '../../runtime/text-file.ts'
import { setVariables, type VariableFault } from '../../runtime/variables.ts'
import { API_VARIABLES } from './config.ts'

const FILES = Object.keys(API_VARIABLES).filter((name) => name.endsWith('_FILE'))

/**
 * What is wrong with them. `user`: who runs the service, if this process is root; systemd reads credentials as root.
 * `nowMs`: Unix time.
 */
export function serviceFileFaults(
  { variables, credentials }: Pick<ServiceEnvironment, 'variables' | 'credentials'>,
  user: string | undefined,
  nowMs: number,
): VariableFault[] {
  const readText = (path: string) =>
    user === undefined || credentials.has(path) ? readTextFile(path) : asUser(user, () => readTextFile(path))
  const as = user === undefined ? '' : ` (read as user ${user}, who runs the service)`
  return settingFileFaults(FILES, setVariables(variables), nowMs, readText).map(({ variable, message }) => ({
    variable,
    message: `${message}${as}`,
  }))
}
