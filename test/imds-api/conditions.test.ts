/**
 * Each condition of imds-api, made on real parts: exactly those that are made are found, and the log, readyz, the metric,
 * doctor and the page say the same.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import t from 'tap'
import { API_CONDITIONS } from '../../src/imds-api/conditions/table.ts'
import { tryLock } from '../../src/imds-api/database/advisory-locks.ts'
import type { ServiceConditions } from '../../src/imds-api/service/operator.ts'
import { formatHostPort } from '../../src/runtime/host-port.ts'
import type { CheckResult } from '../../src/runtime/check.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { aRegion } from '../support/fixtures/region.ts'
import { openDatabaseOf, openTransaction, setRow, startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { run } from '../support/programs/processes.ts'
import { without } from '../support/packages.ts'
import { rememberState } from '../support/redis/go-back.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { shortDirectory } from '../support/test-directory.ts'

/** Ten private addresses, one public one, and RAM for nine servers. */
const REGION = aRegion({
  hypervisors: [
    { name: 'hv-1', zone: 'gb1-a', ram: 9_216 },
    { name: 'hv-2', zone: 'gb1-a', ram: 512 },
  ],
  address_pools: { ...aRegion().address_pools, private_ipv4: ['10.9.9.1-10.9.9.10'], public_ipv4: ['203.0.113.1/32'] },
})
const SERVERS = 9

t.test('log, readyz, metric, doctor and page agree on each condition', { skip: without('postgres') }, async (t) => {
  const directory = shortDirectory(t)
  const [redis, postgres] = [await startRedis(t), await startPostgres(t)]
  const certificate = await (await anAuthority(directory, 'ours')).issue('api')
  const api = await startImdsApi(
    t,
    {
      IMDS_API_DATABASE: postgres.url,
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_API_COMPUTE: 'reported',
      IMDS_API_COMPUTE_LISTEN: `127.0.0.1:${await freePort()}`,
      IMDS_API_COMPUTE_TLS_CERT_FILE: certificate.certFile,
      IMDS_API_COMPUTE_TLS_KEY_FILE: certificate.keyFile,
      IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: certificate.certFile,
      IMDS_API_SMTP: `smtp://127.0.0.1:${await freePort()}`,
      IMDS_API_MAIL_FROM: 'noreply@example.com',
      IMDS_API_INVITATION_URL: 'https://cloud.example.com/invitations',
    },
    REGION,
  )
  const { hostname: host, port } = new URL(api.operatorUrl)
  const env = {
    ...programEnvironment(),
    ...api.env,
    IMDS_API_OPERATOR_LISTEN: formatHostPort({ host, port: Number(port) }),
  }
  const made = new Set<string>()
  const codesNow = async () => {
    const { conditions } = (await (await fetch(`${api.operatorUrl}/conditions`)).json()) as ServiceConditions
    return conditions.map(({ code }) => code).sort()
  }
  /** Waits until exactly these conditions are found, and checks that readyz, doctor, metric and page have them. */
  const agree = async (what: string, ...codes: readonly string[]) => {
    const wanted = codes.toSorted().join()
    let found = ''
    await until(async () => (found = (await codesNow()).join()) === wanted, what).catch((error: unknown) => {
      throw new Error(`${found} in place of ${wanted}`, { cause: error })
    })
    const doctor = JSON.parse(
      (await run([process.execPath, IMDS_API, 'doctor', '--json'], { env })).stdout.toString(),
    ) as {
      readonly checks: readonly CheckResult[]
    }
    const metrics = await api.metrics()
    const page = await (await fetch(api.operatorUrl)).text()
    for (const { code, severity } of API_CONDITIONS) {
      const isFound = codes.includes(code)
      if (isFound) made.add(code)
      t.equal(
        doctor.checks.some((one) => one.code === code && one.severity === severity),
        isFound,
        `doctor: ${code}`,
      )
      const value = `imds_condition{code="${code}",severity="${severity}"} ${Number(isFound)}`
      t.ok(metrics.split('\n').includes(value), value)
      t.equal(page.includes(`>${code}<`), isFound, `the page: ${code}`)
    }
    const { status } = await fetch(`${api.operatorUrl}/readyz`)
    t.equal(status, codes.includes('database-unreachable') ? 503 : 200, what)
  }

  /** Waits until these are in the log, which has them up to 15 s late. */
  const logged = (...codes: readonly string[]) => {
    const isLogged = (code: string) => api.log.findLast((line) => line['code'] === code)?.level === 'warn'
    return until(() => codes.every(isLogged), `${codes.join()} to be logged`)
  }

  const announce = (name: string, change: object = {}) =>
    redis.client.set(
      keysOf('gb1').announcement(name),
      JSON.stringify({ version: '0', instances: 0, lagSeconds: 0, seenAt: new Date().toISOString(), ...change }),
    )
  await announce('hv-1')
  await agree('the certificate that authorities of tests give', 'certificate-ends')
  const always = ['certificate-ends', 'pool-nearly-full', 'ram-nearly-used']
  const ids: string[] = []
  for (let n = 0; n < SERVERS; n++) {
    const { status, body } = await api.call('POST', 'servers', { image: 'img-deb12', server_type: 'typ-small' })
    t.equal(status, 202)
    ids.push((body as { id: string }).id)
  }
  await announce('hv-1')
  await agree('nine servers', ...always)
  t.equal((await api.call('POST', 'cloud_ips')).status, 201)
  t.equal((await api.call('POST', 'collaborations', { email: 'mary@example.com', role: 'admin' })).status, 201)
  await announce('hv-1')
  await agree('the last address, and an invitation', ...always, 'pool-full', 'invitation-not-sent')
  await redis.client.del(keysOf('gb1').announcement('hv-1'))
  await announce('hv-2', { duplicate: true, lagSeconds: 90 })
  const inFleet = ['hypervisors-silent', 'hypervisor-duplicate', 'hypervisors-behind']
  const before = [...always, 'pool-full', 'invitation-not-sent', 'hypervisors-silent']
  await agree('a silent hypervisor, and a cloned one that is behind', ...before, ...inFleet.slice(1))
  await logged(...inFleet)
  await redis.client.del(keysOf('gb1').announcement('hv-2'))

  const database = await openDatabaseOf(api.env)
  const { db } = database
  /** A change of a server that has waited for five minutes. */
  const enqueue = (id: string) =>
    sql`insert into outbox (server_id, account_id, created_at)
      select id, account_id, now() - interval '5 min' from servers where id = ${id}`.execute(db)
  await sql`update compute_actions set requested_at = now() - interval '5 min'`.execute(db)
  await agree('actions that nobody fetches', ...before, 'actions-not-fetched')
  const rest = [...before, 'actions-not-fetched']
  const [refused, waiting] = ids as [string, string]
  await db.updateTable('interfaces').set({ mac_address: 'nonsense' }).where('server_id', '=', refused).execute()
  await enqueue(refused)
  await agree('a record that the store refuses', ...rest, 'server-refused')

  const other = await openTransaction(db)
  await sql`select ${tryLock('publish', waiting)}`.execute(other)
  await enqueue(waiting)
  await agree('another process has the lock of a server', ...rest, 'server-refused', 'servers-waiting')
  await logged('servers-waiting')

  const goBack = await rememberState(redis.client)
  await setRow(db, 'servers', ids[2]!, { revision: 9 })
  await enqueue(ids[2]!)
  await sleep(3_000) // it is published, and the database remembers the order
  await goBack()
  await agree('a Redis that has lost the last publish', ...rest, 'server-refused', 'store-behind')

  await logged(...rest, 'server-refused', 'store-behind')
  await redis.kill()
  const withoutStore = rest.filter((code) => !inFleet.includes(code))
  await agree('Redis away', ...withoutStore, 'server-refused', 'store-behind', 'servers-not-published')
  await logged('servers-not-published')
  await other.commit().execute()
  await database.close()
  await postgres.shutDown()
  const ofProcess = ['certificate-ends', 'store-behind']
  await agree('PostgreSQL away', ...ofProcess, 'database-unreachable')
  await logged('database-unreachable')
  t.same(
    API_CONDITIONS.map(({ code }) => code).filter((code) => !made.has(code)),
    [],
    'each condition was made',
  )
})
