/**
 * Two imds-api on one PostgreSQL behind deploy/haproxy.cfg, as docs/operations/imds-api.md#several-imds-api describes: they are
 * upgraded one after another, and one is killed, while clients use them.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setDefaultCACertificates } from 'node:tls'
import { sql } from 'kysely'
import t, { type Test } from 'tap'
import { migrate } from '../../src/imds-api/database/migrate.ts'
import { MIGRATIONS } from '../../src/imds-api/database/migrations.ts'
import { openDatabase } from '../../src/imds-api/database/open.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, startClients, storeEqualsDatabase, watchRevisions } from '../support/load/api-load.ts'
import { basic, startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { readEvents } from '../support/programs/event-reader.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

const ROOT = new URL('../../', import.meta.url)
const IMAGE = { image: 'img-deb12' }
const SERVERS = 2
/** The hosts of deploy/haproxy.cfg, and their addresses here. */
const HOSTS = { api1: ['10.1.0.10', '127.0.0.2'], api2: ['10.1.0.11', '127.0.0.3'] } as const
type Host = keyof typeof HOSTS

t.test('behind HAProxy', { skip: without('postgres', 'haproxy') }, async (t) => {
  const whole = t
  const [postgres, redis] = [await startPostgres(t), await startRedis(t)]
  const settings = { url: postgres.url }
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const directory = shortDirectory(t)
  const authority = await anAuthority(directory, 'authority')
  setDefaultCACertificates([readFileSync(authority.caFile, 'utf8')])
  const { certFile, keyFile } = await authority.issue('api')
  const [front, back, operators] = [await freePort(), await freePort(), await freePort()]
  const baseUrl = `https://127.0.0.1:${front}`
  const environment = readFileSync(new URL('deploy/imds-api.env', ROOT), 'utf8')
  const [, delay] = /^#?IMDS_API_STOP_DELAY_SECONDS=(\d+)$/m.exec(environment)!
  const envOf = (host: Host) => ({
    IMDS_API_DATABASE: postgres.url,
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_API_BASE_URL: baseUrl,
    IMDS_API_LISTEN: `${HOSTS[host][1]}:${back}`,
    IMDS_API_OPERATOR_LISTEN: `${HOSTS[host][1]}:${operators}`,
    IMDS_API_TLS_CERT_FILE: certFile,
    IMDS_API_TLS_KEY_FILE: keyFile,
    IMDS_API_TRUSTED_PROXIES: '127.0.0.1',
    IMDS_API_STOP_DELAY_SECONDS: delay!,
  })
  const apis = { api1: await startImdsApi(t, envOf('api1')), api2: await startProcess(t, envOf('api2')) }
  writeFileSync(join(directory, 'api.pem'), readFileSync(certFile, 'utf8') + readFileSync(keyFile, 'utf8'))
  let config = readFileSync(new URL('deploy/haproxy.cfg', ROOT), 'utf8')
  for (const [text, here] of [
    [':443', `127.0.0.1:${front}`],
    ['/etc/haproxy/api.pem', join(directory, 'api.pem')],
    ['/etc/haproxy/imds-api-ca.pem', authority.caFile],
    ['9170', String(operators)],
    ['8170', String(back)],
    ...Object.values(HOSTS),
  ] as const) {
    t.ok(config.includes(text), text)
    config = config.replaceAll(text, here)
  }
  if (process.getuid?.() !== 0) config = config.replaceAll(/^ +(?:user|group) haproxy$/gm, '')
  writeFileSync(join(directory, 'haproxy.cfg'), config)
  await startProxy(t, join(directory, 'haproxy.cfg'))
  await until(() => isServed(`${baseUrl}/1.0/openapi.json`), 'HAProxy to serve')

  const answer = await fetch(`${baseUrl}/token`, {
    method: 'POST',
    headers: { authorization: basic(CLIENT_OF[ONE]) },
    body: new URLSearchParams({ grant_type: 'client_credentials' }),
  })
  const { access_token: token } = (await answer.json()) as { access_token: string }
  const servers = await Promise.all(
    Array.from(
      { length: SERVERS },
      async () => (await ask(baseUrl, token, 'POST', 'servers', IMAGE)).body as { id: string },
    ),
  )
  const ids = servers.map(({ id }) => id)
  for (const id of ids) await ask(baseUrl, token, 'GET', `servers/${id}/wait?status=active`)

  t.test('two imds-api are upgraded one after the other, tables included, and no request fails', async (t) => {
    const revisions = watchRevisions(t, store)
    const clients = startClients(t, [baseUrl], token, ids)
    const others = await startOthers(t, baseUrl, token)
    const database = await openDatabase(settings, true, () => undefined) // the next query reports it
    t.teardown(() => database.close())
    for (const host of ['api1', 'api2'] as const) {
      t.equal(await apis[host].stop(), 0)
      // what the start of a later version does first; the program that starts then does not know this migration
      await migrate(database.db, { ...MIGRATIONS, '9002-more': { up: expand, oldest: '0001-first' } })
      apis[host] = await startProcess(whole, envOf(host))
      await until(() => isServed(`http://${HOSTS[host][1]}:${operators}/readyz`), `${host} to be ready`)
      await sleep(5_000) // as in the document: until the proxy has noticed
    }
    t.comment(JSON.stringify({ changes: [...clients.statuses], ...others.counts }))
    const acknowledged = await clients.stop()
    t.strictSame([...clients.statuses.keys()], [200])
    t.strictSame(await others.stop(), [])
    t.equal(others.counts.events, others.counts.groups, 'each event has arrived once')
    t.ok(others.counts.groups > 0)
    t.ok(others.counts.polls >= 2, 'the events were followed in the other process')
    t.ok(others.counts.waits > 0, 'a wait ended and was asked for again')
    await storeEqualsDatabase(t, settings, store, acknowledged)
    t.strictSame(await revisions.stop(), [])
  })

  t.test('one of two imds-api is killed: each client loses at most the request that was under way', async (t) => {
    const clients = startClients(t, [baseUrl], token, ids)
    const done = async (more: number) => {
      const before = clients.statuses.get(200) ?? 0
      await until(() => (clients.statuses.get(200) ?? 0) > before + more, 'changes to be acknowledged')
    }
    await done(20)
    apis.api2.process.kill('SIGKILL')
    await once(apis.api2.process, 'exit')
    await done(30)
    apis.api2 = await startProcess(whole, envOf('api2'))
    await done(30)
    const acknowledged = await clients.stop()
    t.comment(JSON.stringify([...clients.statuses]))
    const lost = (clients.statuses.get(502) ?? 0) + (clients.statuses.get(0) ?? 0)
    t.ok(lost <= SERVERS)
    t.equal(clients.statuses.values().reduce((sum, count) => sum + count, 0) - lost, clients.statuses.get(200))
    await storeEqualsDatabase(t, settings, store, acknowledged)
  })

  t.test('while no imds-api is ready, the response is JSON with Retry-After', async (t) => {
    for (const api of Object.values(apis)) api.process.kill('SIGKILL')
    // HAProxy closes the connection of a client whose request met a process that has just died: clients try again.
    let response: Response | undefined
    await until(async () => {
      response = await fetch(`${baseUrl}/1.0/servers`).catch(() => undefined)
      if (response?.status === 503) return true
      await response?.text()
      return false
    }, 'HAProxy to notice')
    t.equal(response!.headers.get('retry-after'), '1')
    t.match(await response!.json(), { error_name: 'service_unavailable', errors: ['no imds-api is ready: try again'] })
  })
})

/** An example of a migration that only adds: to tables that requests use all the time. */
async function expand(database: Parameters<(typeof MIGRATIONS)[string]['up']>[0]): Promise<void> {
  for (const table of [
    'accounts', // first, as CONTRIBUTING.md#migrations says
    'servers',
    'api_clients',
    'access_tokens',
    'cloud_ips',
    'images',
    'outbox',
    'events',
  ])
    await sql`alter table ${sql.table(table)} add column more text not null default 'none'`.execute(database)
  await sql`create table more (id text primary key, server_id text references servers)`.execute(database)
  await sql`create index servers_more on servers (more)`.execute(database)
}

async function startProxy(t: Test, file: string): Promise<void> {
  const proxy = spawn('haproxy', ['-db', '-q', '-f', file], { stdio: ['ignore', 'ignore', 'inherit'] })
  await once(proxy, 'spawn')
  t.teardown(async () => {
    if (proxy.exitCode !== null) return
    proxy.kill('SIGTERM')
    await once(proxy, 'exit')
  })
}

function isServed(url: string): Promise<boolean> {
  return fetch(url).then(
    async (response) => {
      await response.text()
      return response.ok
    },
    () => false,
  )
}

/** Starts clients that read, create, wait and follow events. `stop` returns what failed. */
async function startOthers(t: Test, baseUrl: string, token: string) {
  const faults: string[] = []
  const counts = { reads: 0, groups: 0, events: 0, polls: 0, waits: 0 }
  let isRunning = true as boolean // TypeScript does not see that it changes
  let isStopped = false
  const isFollowing = () => !isStopped
  let abort = new AbortController()
  t.teardown(() => {
    isRunning = false
    isStopped = true
    abort.abort()
  })
  const expectStatus = (what: string, status: number, expected: number) => {
    if (status !== expected) faults.push(`${what}: ${status}`)
  }
  const reading = async () => {
    for (; isRunning; counts.reads++) {
      expectStatus('GET servers', (await ask(baseUrl, token, 'GET', 'servers')).status, 200)
      await sleep(50)
    }
  }
  const creating = async () => {
    while (isRunning) {
      const { status, body } = await ask(baseUrl, token, 'POST', 'server_groups', { name: 'upgraded' })
      expectStatus('POST server_groups', status, 202)
      if (status === 202) counts.groups++
      const { id } = body as { id: string }
      expectStatus('DELETE', (await ask(baseUrl, token, 'DELETE', `server_groups/${id}`)).status, 202)
      await sleep(100)
    }
  }
  const waiting = async () => {
    const { body } = await ask(baseUrl, token, 'POST', 'cloud_ips')
    const { id } = body as { id: string }
    while (isRunning) {
      const { status } = await ask(baseUrl, token, 'GET', `cloud_ips/${id}/wait?status=mapped&timeout=20`)
      expectStatus('wait', status, 408)
      counts.waits++
    }
  }
  const { next: first } = await readEvents(baseUrl, token, 'now') // before the first change, so that it gets all events
  const following = async () => {
    for (let cursor = first; isFollowing();) {
      try {
        abort = new AbortController()
        const { events, next } = await readEvents(baseUrl, token, cursor, '&wait=20', abort.signal)
        counts.events += events.filter(
          ({ resource, action }) => resource.resource_type === 'server_group' && action === 'create',
        ).length
        counts.polls++
        cursor = next
      } catch (error) {
        if (isFollowing()) faults.push(`events: ${String(error)}`)
      }
    }
  }
  const addFault = (error: unknown) => faults.push(String(error))
  const start = (client: () => Promise<void>) => client().catch(addFault)
  const changing = Promise.all([reading, creating, waiting].map(start))
  const followed = start(following)
  return {
    counts,
    stop: async () => {
      isRunning = false
      await changing
      await until(() => counts.events >= counts.groups, 'the last events').catch(addFault)
      isStopped = true
      abort.abort()
      await followed
      return faults
    },
  }
}
