/**
 * Debian's PostgreSQL 15 as a server of its own, on a free port of 127.0.0.1. It refuses to run as root, so root runs
 * it as `nobody`.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, chownSync, copyFileSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Test } from 'tap'
import { freePort } from '../redis/redis.ts'
import type { Certificate } from '../redis/tls.ts'
import { until } from './daemon.ts'

/** A running server. */
export interface TestPostgres {
  readonly url: string
  /** Fast shutdown: connections are closed. */
  shutDown(): Promise<void>
  /** Starts it again on the same port. */
  restart(): Promise<void>
  /** Changes the password of its user. */
  setPassword(password: string): Promise<void>
}

const BIN = '/usr/lib/postgresql/15/bin'
const NOBODY = 65_534

/** Why it cannot be started here; false: it can. */
export function withoutPostgres(): string | false {
  return existsSync(join(BIN, 'postgres')) ? false : 'postgresql-15 is not installed'
}

/** What a server asks of its clients: TLS with this certificate, and this password. */
export interface Demands {
  readonly certificate: Certificate
  readonly password: string
}

/** Starts a server that stops with the test. Without `demands` it trusts everyone. */
export async function startPostgres(t: Test, demands?: Demands): Promise<TestPostgres> {
  const user = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
  const directory = mkdtempSync(join(tmpdir(), 'imds-pg-'))
  t.teardown(() => {
    rmSync(directory, { recursive: true, force: true })
  })
  chmodSync(directory, 0o711)
  if (user.uid !== undefined) chownSync(directory, user.uid, user.gid)
  const options = { ...user, cwd: '/', env: { PATH: BIN, LC_ALL: 'C' }, stdio: 'ignore' } as const
  const data = join(directory, 'data')
  const initdb = spawn(
    join(BIN, 'initdb'),
    ['-D', data, '-U', 'imds', '-A', 'trust', '-E', 'UTF8', '--no-sync'],
    options,
  )
  await once(initdb, 'exit')
  if (initdb.exitCode !== 0) throw new Error('initdb failed')
  const tls = demands === undefined ? [] : ['-c', 'ssl=on', ...setDemands(directory, demands, user.uid)]
  const port = await freePort()
  const url = `postgres://imds@127.0.0.1:${String(port)}/postgres`
  let child: ChildProcess | undefined
  const restart = async () => {
    const args = [
      '-D',
      data,
      '-k',
      directory,
      '-p',
      String(port),
      '-c',
      'listen_addresses=127.0.0.1',
      '-c',
      'fsync=off',
      ...tls,
    ]
    child = spawn(join(BIN, 'postgres'), args, options)
    await until(() => canConnect({ host: directory, port, user: 'imds', database: 'postgres' }), 'PostgreSQL to start')
  }
  const shutDown = async () => {
    if (child?.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGINT')
    await once(child, 'exit')
  }
  t.teardown(shutDown)
  const setPassword = async (password: string) => {
    const client = new pg.Client({ host: directory, port, user: 'imds', database: 'postgres' })
    await client.connect()
    await client.query(`alter user imds password '${password}'`)
    await client.end()
  }
  await restart()
  if (demands !== undefined) await setPassword(demands.password)
  return { url, shutDown, restart, setPassword }
}

/**
 * Lets in by TCP only those with TLS and a password. Returns the options of the certificate, whose key must belong to
 * the server's user.
 */
function setDemands(
  directory: string,
  { certificate: { certFile, keyFile } }: Demands,
  uid: number | undefined,
): string[] {
  writeFileSync(
    join(directory, 'data/pg_hba.conf'),
    'local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n',
  )
  const [certificate, key] = [join(directory, 'server.pem'), join(directory, 'server.key')]
  copyFileSync(certFile, certificate)
  copyFileSync(keyFile, key)
  chmodSync(certificate, 0o644)
  chmodSync(key, 0o600)
  if (uid !== undefined) chownSync(key, uid, uid)
  return ['-c', `ssl_cert_file=${certificate}`, '-c', `ssl_key_file=${key}`]
}

async function canConnect(connection: pg.ClientConfig): Promise<boolean> {
  const client = new pg.Client(connection)
  client.on('error', () => {
    /* connect rejects too */
  })
  return client
    .connect()
    .then(() => client.end())
    .then(
      () => true,
      () => false,
    )
}
