/** imds-api as a program: the region file, its answers on a socket, its metrics, and its end. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sql } from 'kysely'
import t from 'tap'
import { lockAccount } from '../../src/imds-api/changes/limits.ts'
import { markChanged } from '../../src/imds-api/database/outbox.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { aRegion, CLIENT_OF, ONE, TOTP_SECRET, TWO, withFiles } from '../support/fixtures/region.ts'
import {
  countOfLockWaits,
  openDatabaseOf,
  openTransaction,
  startImdsApi,
  writeRegion,
} from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'

t.setTimeout(300_000) // as under `npm test`

const api = await startImdsApi(t, { IMDS_API_DATABASE_CONNECTIONS: '3' })
const directory = shortDirectory(t)
writeRegion(directory) // for the files of its secrets

async function imdsApi(...args: string[]) {
  const { status, stdout, stderr } = await run([process.execPath, IMDS_API, ...args], {
    env: { ...programEnvironment(), ...api.env },
  })
  return { status, stdout: stdout.toString().trim().split('\n'), stderr }
}

async function apply(region: object, ...args: string[]) {
  const file = join(directory, 'changed.yaml')
  writeFileSync(file, JSON.stringify(region))
  return imdsApi('apply', file, ...args)
}

t.test('it serves a region on a socket, and counts requests by route, method and status', async (t) => {
  const { status, body } = await api.call('POST', 'servers', { image: 'img-deb12' })
  const { id, url } = body as { id: string; url: string }
  t.equal(status, 202)
  t.equal(url, `${api.baseUrl}/1.0/servers/${id}`)
  t.match(await api.call('GET', `servers/${id}`), { status: 200 })
  t.equal((await fetch(`${api.baseUrl}/1.0/servers/x`)).status, 401)
  t.equal((await fetch(`${api.operatorUrl}/readyz`)).status, 200)
  const metrics = await api.metrics()
  for (const [route, method, status] of [
    ['/1.0/servers', 'POST', 202],
    ['/1.0/servers/:id', 'GET', 200],
    ['/1.0/servers/:id', 'GET', 401],
    ['/token', 'POST', 200],
  ] as const) {
    t.match(metrics, `imds_api_requests_total{route="${route}",method="${method}",status="${status}"} `)
  }
  t.match(metrics, /^imds_api_outbox_servers \d+$/m)
  t.match(metrics, /^imds_api_publishes_total\{result="published"\} \d+$/m)
  t.match(metrics, /^imds_build_info\{.+\} 1$/m)
})

t.test('it counts batches, requests with a key, and the requests that wait', async (t) => {
  const token = await api.token(CLIENT_OF[ONE])
  const { metrics } = api
  const shows = (...lines: string[]) =>
    until(async () => {
      const text = await metrics()
      return lines.every((line) => text.includes(`\nimds_api_${line}\n`))
    }, lines.join(', '))
  const send = (method: string, path: string, options: RequestInit = {}) =>
    fetch(`${api.baseUrl}/1.0/${path}`, {
      method,
      ...options,
      headers: { authorization: `Bearer ${token}`, 'idempotency-key': 'once' },
    })
  t.match([await send('POST', 'cloud_ips'), await send('POST', 'cloud_ips')], [{ status: 201 }, { status: 201 }])
  await shows('keyed_requests_total{result="new"} 1', 'keyed_requests_total{result="replayed"} 1')
  const [{ id }] = (await (await send('GET', 'cloud_ips')).json()) as [{ id: string }]
  const abort = new AbortController()
  const waits = send('GET', `cloud_ips/${id}/wait?status=mapped`, { signal: abort.signal })
  await shows('waits 1')
  abort.abort()
  await t.rejects(waits)
  await shows('waits 0')
  const published = async () => /^imds_api_publish_batches_total [1-9]/m.test(await metrics())
  await until(published, 'the server of an earlier test to be published')
})

t.test('while requests hold all their connections, servers are published, and readyz is answered', async (t) => {
  const database = await openDatabaseOf(api.env)
  const { db, pool } = database
  const tokens = await Promise.all(([ONE, TWO] as const).map((account) => api.token(CLIENT_OF[account])))
  const holder = await openTransaction(db)
  await sql`lock table config_maps`.execute(holder)
  // of three connections, the reads of an account may hold one, all reads two, and all changes one
  const send = (token: string, method: string, body: string | null = null) =>
    fetch(`${api.baseUrl}/1.0/config_maps`, {
      method,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body,
    })
  const requests = [...tokens.map((token) => send(token, 'GET')), send(tokens[0]!, 'POST', '{"data":{}}')]
  await until(async () => (await countOfLockWaits(pool)) === 3, 'all connections for requests to wait')
  await sql`insert into outbox (server_id, account_id) select id, account_id from servers`.execute(db)
  await until(
    async () => (await db.selectFrom('outbox').select('id').executeTakeFirst()) === undefined,
    'the server to be published',
  )
  t.equal((await fetch(`${api.operatorUrl}/readyz`)).status, 200)
  t.match(await api.metrics(), /^imds_condition\{code="database-unreachable",severity="failure"\} 0$/m)
  await holder.commit().execute()
  t.strictSame(
    (await Promise.all(requests)).map(({ status }) => status),
    [200, 200, 200],
  )
  await database.close()
})

t.test('apply prints the difference, never a secret; --dry-run changes nothing, a lost output is 74', async (t) => {
  writeFileSync(join(directory, 'other.secret'), 'another-secret-of-clients\n')
  writeFileSync(join(directory, 'ada.password'), 'correct horse\n')
  writeFileSync(join(directory, 'ada.totp'), `${TOTP_SECRET}\n`)
  const {
    api_clients,
    users: [ada, grace],
  } = aRegion()
  const users = [withFiles(ada!, 'ada.password', 'ada.totp'), grace!]
  const other = aRegion({
    users,
    api_clients: api_clients.map((client) =>
      client.account === ONE ? client : { ...client, secret_file: 'other.secret' },
    ),
  })
  for (const args of [['--dry-run'], []])
    t.strictSame(await apply(other, ...args), {
      status: 0,
      stdout: ['~ user usr-ada01: password_hash, totp_secret', '~ api client cli-two02: secret'],
      stderr: '',
    })
  const command = `exec ${process.execPath} ${IMDS_API} apply ${writeRegion(directory)} > /dev/full`
  t.match(await run(['bash', '--norc', '-c', command], { env: { ...programEnvironment(), ...api.env } }), {
    status: 74,
    stderr: /^imds-api: output was lost: ENOSPC: /,
  })
  t.same((await apply(aRegion())).stdout, ['no difference'], 'the changes are made though the output was lost')
})

t.test('a bad region file exits with 78, and each bad secret is named; wrong arguments with 64', async (t) => {
  const bad = await apply(aRegion({ name: '' }))
  t.match([bad.status, bad.stderr], [78, /: name /])
  const {
    api_clients: [client],
    users: [ada, grace],
  } = aRegion()
  writeFileSync(join(directory, 'short'), 'horse\n')
  const { status: secretStatus, stderr: secretFaults } = await apply(
    aRegion({ users: [withFiles(ada!, 'short', 'short'), grace!], api_clients: [{ ...client!, secret_file: 'none' }] }),
  )
  t.equal(secretStatus, 78)
  t.match(
    secretFaults,
    /: none cannot be read\n.*: short must have a password of 8 to 72 characters in its only line\n.*: short must have a secret in base32 with 16 to 128 characters\n$/,
  )
  t.notMatch(secretFaults, /horse/)
  t.equal((await imdsApi('apply')).status, 64)
  const { status: unset, stderr: faults } = await run([process.execPath, IMDS_API], {
    env: { ...programEnvironment(), IMDS_API_LISTEN: 'x', IMDS_STORE: 'y' },
  })
  t.equal(unset, 78)
  t.match(
    faults,
    /^imds-api: IMDS_API_LISTEN .*\nimds-api: IMDS_API_DATABASE is not set: make a database .*\nimds-api: IMDS_STORE /,
  )
})

t.test('SIGTERM during the start ends it with 0', async (t) => {
  const { db, pool, close } = await openDatabaseOf(api.env)
  t.teardown(close)
  const other = await openTransaction(db)
  await sql`lock table kysely_migration`.execute(other)
  const env = { ...programEnvironment(), ...api.env, IMDS_API_LISTEN: '127.0.0.1:0' }
  const starting = spawn(process.execPath, [IMDS_API], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  const output = starting.stdout.toArray()
  await until(async () => (await countOfLockWaits(pool)) > 0, 'the start to wait')
  starting.kill('SIGTERM')
  t.strictSame(await once(starting, 'exit'), [0, null])
  t.match(Buffer.concat((await output) as Buffer[]).toString(), /"msg":"stopped"/)
  await until(async () => (await countOfLockWaits(pool)) === 0, 'PostgreSQL to roll back')
  await other.rollback().execute()
})

t.test('a stop publishes until the last request has ended', async (t) => {
  const stopped = await startImdsApi(t)
  const { db, pool, close } = await openDatabaseOf(stopped.env)
  t.teardown(close)
  const isPublished = async () => (await db.selectFrom('outbox').select('id').execute()).length === 0
  const { id } = (await stopped.call('POST', 'servers', { image: 'img-deb12' })).body as { id: string }
  await until(isPublished, 'the server to be published')
  const other = await openTransaction(db)
  await lockAccount(other, ONE)
  const last = stopped.call('PUT', `servers/${id}`, { name: 'last' })
  await until(async () => (await countOfLockWaits(pool)) > 0, 'the request to wait')
  stopped.process.kill('SIGTERM')
  await until(() => stopped.log.some(({ msg }) => msg === 'stopping'), 'the stop')
  await inTransaction(db, (tx) => markChanged(tx, [id]))
  await until(isPublished, 'the change to be published')
  await other.commit().execute()
  t.match(await last, { status: 200 })
  t.equal(await stopped.stop(), 0)
})

t.test('SIGTERM ends it with 0', async (t) => {
  t.equal(await api.stop(), 0)
  t.equal(api.log.at(-1)?.msg, 'stopped')
  t.strictSame(
    api.log.filter(({ level }) => level !== 'info'),
    [],
    'nothing to warn of',
  )
})
