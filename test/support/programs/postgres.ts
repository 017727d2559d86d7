/**
 * Debian's PostgreSQL 15 as a server of its own, on a free port of 127.0.0.1. It refuses to run as root, so root runs it as `nobody`.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, chownSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Test } from 'tap'
import { freePort } from '../redis/redis.ts'
import { until } from './daemon.ts'

/** A running server. */
export interface TestPostgres {
  readonly url: string
  /** Fast shutdown: connections are closed. */
  shutDown(): Promise<void>
  /** Starts it again on the same port. */
  restart(): Promise<void>
}

const BIN = '/usr/lib/postgresql/15/bin'
const NOBODY = 65_534

/** Why it cannot be started here; false: it can. */
export function withoutPostgres(): string | false {
  return existsSync(join(BIN, 'postgres')) ? false : 'postgresql-15 is not installed'
}

/** Starts a server that stops with the test. */
export async function startPostgres(t: Test): Promise<TestPostgres> {
  const user = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
  const directory = mkdtempSync(join(tmpdir(), 'imds-pg-'))
  t.teardown(() => { rmSync(directory, { recursive: true, force: true }) })
  chmodSync(directory, 0o711)
  if (user.uid !== undefined) chownSync(directory, user.uid, user.gid)
  const options = { ...user, cwd: '/', env: { PATH: BIN, LC_ALL: 'C' }, stdio: 'ignore' } as const
  const data = join(directory, 'data')
  const initdb = spawn(join(BIN, 'initdb'), ['-D', data, '-U', 'imds', '-A', 'trust', '-E', 'UTF8', '--no-sync'], options)
  await once(initdb, 'exit')
  if (initdb.exitCode !== 0) throw new Error('initdb failed')
  const port = await freePort()
  const url = `postgres://imds@127.0.0.1:${String(port)}/postgres`
  let child: ChildProcess | undefined
  const restart = async () => {
    const args = ['-D', data, '-k', directory, '-p', String(port), '-c', 'listen_addresses=127.0.0.1', '-c', 'fsync=off']
    child = spawn(join(BIN, 'postgres'), args, options)
    await until(() => canConnect(url), 'PostgreSQL to start')
  }
  const shutDown = async () => {
    if (child?.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGINT')
    await once(child, 'exit')
  }
  t.teardown(shutDown)
  await restart()
  return { url, shutDown, restart }
}

async function canConnect(url: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => { /* connect rejects too */ })
  return client.connect().then(() => client.end()).then(() => true, () => false)
}
