/** This installation: its version, and whether its files are there. */
import { fileURLToPath } from 'node:url'
import manifest from '../../package.json' with { type: 'json' }

/** The version of this package, as `--version` and the metric `imds_build_info` show it. */
export const VERSION = manifest.version

/** The directory of the package, or src/ if the daemon runs from the source. */
const OURS = fileURLToPath(new URL('..', import.meta.url))

/**
 * The path of the file of this installation that `error` says is missing, as during an upgrade, which replaces the
 * directory with files of other names; undefined for any other error.
 */
export function missingFile(error: unknown): string | undefined {
  const { code, message, path, url } = error as NodeJS.ErrnoException & { url?: string }
  if (code !== 'ENOENT' && code !== 'ERR_MODULE_NOT_FOUND') return undefined
  const missing = path ?? (url === undefined ? /'([^']+)'/.exec(message)?.[1] : fileURLToPath(url))
  return missing?.startsWith(OURS) === true ? missing : undefined
}
