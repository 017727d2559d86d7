/**
 * Debian's PostgreSQL 15 as a server of its own, on a free port of 127.0.0.1. It refuses to run as root, so root runs
 * it as `nobody`.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, chownSync, copyFileSync, readdirSync, readlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import type { Test } from 'tap'
import { freePort } from '../redis/redis.ts'
import type { Certificate } from '../redis/tls.ts'
import { until } from './daemon.ts'
import { shortDirectory } from '../test-directory.ts'

/** A running server. */
export interface TestPostgres {
  readonly url: string
  readonly port: number
  /** Its directory, with its socket and its `data`. */
  readonly directory: string
  /** Fast shutdown: connections are closed. */
  shutDown(): Promise<void>
  /** Kills (-9) all its processes. */
  kill(): Promise<void>
  /** Starts it again on the same port. */
  restart(): Promise<void>
  /** Makes a standby the primary. */
  promote(): Promise<void>
  /** Changes the password of its user. */
  setPassword(password: string): Promise<void>
}

/** Debian's programs of PostgreSQL. */
export const POSTGRES_PROGRAMS = '/usr/lib/postgresql/15/bin'
const NOBODY = 65_534

/** What a server asks of its clients: TLS with this certificate, and this password. */
export interface Demands {
  readonly certificate: Certificate
  readonly password: string
}

/**
 * Starts a server that stops with the test. Without `demands` it trusts everyone. `env`: of the server. `settings`:
 * `NAME=VALUE` of its configuration.
 */
export async function startPostgres(
  t: Test,
  demands?: Demands,
  env: Readonly<Record<string, string>> = {},
  settings: readonly string[] = [],
): Promise<TestPostgres> {
  const directory = makeDirectory(t)
  await runAs('initdb', ['-D', join(directory, 'data'), '-U', 'imds', '-A', 'trust', '-E', 'UTF8', '--no-sync'])
  const options = [
    ...settings.flatMap((setting) => ['-c', setting]),
    ...(demands === undefined ? [] : ['-c', 'ssl=on', ...setDemands(directory, demands)]),
  ]
  const server = await startIn(t, directory, options, env)
  if (demands !== undefined) await server.setPassword(demands.password)
  return server
}

/** Starts a standby of a server. */
export async function startStandby(t: Test, primary: TestPostgres): Promise<TestPostgres> {
  const directory = makeDirectory(t)
  const source = ['-h', primary.directory, '-p', String(primary.port), '-U', 'imds']
  const target = ['-D', join(directory, 'data'), '--write-recovery-conf', '--checkpoint=fast', '--no-sync']
  await runAs('pg_basebackup', [...source, ...target])
  return startIn(t, directory, [])
}

/** The user of all servers, and how their programs are run. */
const USER = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
const OPTIONS = { ...USER, cwd: '/', env: { PATH: POSTGRES_PROGRAMS, LC_ALL: 'C' }, stdio: 'ignore' } as const

function makeDirectory(t: Test): string {
  const directory = shortDirectory(t)
  chmodSync(directory, 0o711)
  if (USER.uid !== undefined) chownSync(directory, USER.uid, USER.gid)
  return directory
}

async function runAs(program: string, args: readonly string[]): Promise<void> {
  const child = spawn(join(POSTGRES_PROGRAMS, program), args, { ...OPTIONS, stdio: ['ignore', 'ignore', 'pipe'] })
  const [stderr] = await Promise.all([child.stderr.toArray(), once(child, 'close')])
  if (child.exitCode !== 0) throw new Error(`${program} failed: ${Buffer.concat(stderr as Buffer[]).toString()}`)
}

/** Starts a server with the data of a directory. */
async function startIn(
  t: Test,
  directory: string,
  settings: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<TestPostgres> {
  const data = join(directory, 'data')
  const port = await freePort()
  const connection = { host: directory, port, user: 'imds', database: 'postgres' }
  const places = ['-D', data, '-k', directory, '-p', String(port), '-c', 'listen_addresses=127.0.0.1']
  let child: ChildProcess | undefined
  const restart = async () => {
    child = spawn(join(POSTGRES_PROGRAMS, 'postgres'), [...places, '-c', 'fsync=off', ...settings], {
      ...OPTIONS,
      env: { ...OPTIONS.env, ...env },
    })
    await until(() => canConnect(connection), 'PostgreSQL to start')
  }
  const end = async (signal: () => void) => {
    if (child?.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    signal()
    await exited
  }
  const shutDown = () => end(() => child!.kill('SIGINT'))
  t.teardown(shutDown)
  await restart()
  return {
    url: `postgres://imds@127.0.0.1:${port}/postgres`,
    port,
    directory,
    shutDown,
    kill: async () => {
      await end(() => {
        for (const pid of processesWith(data)) process.kill(pid, 'SIGKILL')
      })
      await until(() => processesWith(data).length === 0, 'PostgreSQL to end')
    },
    restart,
    promote: () => runAs('pg_ctl', ['promote', '-D', data]),
    setPassword: async (password) => {
      const client = new pg.Client(connection)
      await client.connect()
      await client.query(`alter user imds password '${password}'`)
      await client.end()
    },
  }
}

/** The processes whose working directory is this one: every process of a PostgreSQL is in its data directory. */
export function processesWith(data: string): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => {
      try {
        return pid > 0 && readlinkSync(`/proc/${pid}/cwd`) === data
      } catch {
        return false
      }
    })
}

/**
 * Lets in by TCP only those with TLS and a password. Returns the options of the certificate, whose key must belong to
 * the server's user.
 */
function setDemands(directory: string, { certificate: { certFile, keyFile } }: Demands): string[] {
  writeFileSync(
    join(directory, 'data/pg_hba.conf'),
    'local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n',
  )
  const [certificate, key] = [join(directory, 'server.pem'), join(directory, 'server.key')]
  copyFileSync(certFile, certificate)
  copyFileSync(keyFile, key)
  chmodSync(certificate, 0o644)
  chmodSync(key, 0o600)
  if (USER.uid !== undefined) chownSync(key, USER.uid, USER.gid)
  return ['-c', `ssl_cert_file=${certificate}`, '-c', `ssl_key_file=${key}`]
}

async function canConnect(connection: pg.ClientConfig): Promise<boolean> {
  const client = new pg.Client(connection)
  client.on('error', () => undefined)
  return client
    .connect()
    .then(() => client.end())
    .then(
      () => true,
      () => false,
    )
}
