/**
 * The imds-api that is fuzzed: a process with an encrypted store, who sends it requests, and what must be true of it at
 * the end.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { Database } from '../../../src/imds-api/database/open.ts'
import { compareStore } from '../../../src/imds-api/publish/compare.ts'
import type { Publisher } from '../../../src/store/open.ts'
import { keyLines } from '../../support/fixtures/record-keys.ts'
import { secretOf } from '../../support/fixtures/region.ts'
import { BASE_URL } from '../../support/fixtures/representations.ts'
import { openDatabaseOf, startImdsApi, type TestImdsApi } from '../../support/programs/api.ts'
import { until } from '../../support/programs/daemon.ts'
import { collectable } from '../../support/programs/garbage.ts'
import { startRedis } from '../../support/redis/redis.ts'
import { buildLanes, plant, type Identity, type Lane } from './population.ts'
import { ACCOUNTS, fuzzRegion } from './region.ts'
import { openTestStore } from '../../support/test-store.ts'

/** A running host. */
export interface ApiHost {
  readonly api: TestImdsApi
  readonly document: object
  readonly lanes: readonly Lane[]
  /** The ids of the resources that each account had at first. */
  readonly planted: readonly string[]
  /** The number of the newest event of a lane's account that one of its identities has caused. */
  newestEvent(lane: Lane): Promise<number>
  /** Heap in use after a garbage collection, in bytes. */
  heap(): Promise<number>
  /** Describes what is wrong with the process, its log, the events and the store. */
  problems(): Promise<string[]>
}

/** Starts a host, which stops with the test. */
export async function startApiHost(t: Pick<Test, 'teardown'>): Promise<ApiHost> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-fuzz-'))
  t.teardown(() => rmSync(directory, { recursive: true }))
  const [errors, recordKeys] = [join(directory, 'errors'), join(directory, 'record-keys')]
  writeFileSync(recordKeys, keyLines('k1'), { mode: 0o600 })
  const redis = await startRedis(t)
  const store = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_RECORD_KEYS_FILE: recordKeys }
  const { env, within, collect } = await collectable(errors)
  const settings = { ...store, IMDS_API_BASE_URL: BASE_URL, IMDS_API_TRUSTED_PROXIES: '127.0.0.1' }
  const api = await startImdsApi(t, { ...settings, ...env }, fuzzRegion(), 'inherit', within)
  const database = await openDatabaseOf(api.env)
  t.teardown(() => database.close())

  const publisher = await openTestStore(t, { url: redis.url, region: 'gb1', recordKeysFile: recordKeys })

  const owned = await Promise.all(ACCOUNTS.map((account) => plant(api, account)))
  const lanes = await buildLanes(api, database, owned)
  const identities = lanes.flatMap((lane) => lane.identities)
  const secrets = [
    ...identities.flatMap(({ token }) => token ?? []),
    ...ACCOUNTS.map(({ marker }) => marker),
    secretOf(''),
  ]
  return {
    api,
    lanes,
    planted: owned.flat(),
    document: (await (await fetch(`${api.baseUrl}/1.0/openapi.json`)).json()) as object,
    newestEvent: async ({ account, identities: senders }) => {
      const actors = senders.map(({ actor }) => actor)
      const { rows } = await database.pool.query<{ newest: string | null }>(
        'select max(id) as newest from events where account_id = $1 and actor = any($2)',
        [account.id, actors],
      )
      return Number(rows[0]!.newest)
    },
    heap: async () => {
      await collect()
      const metrics = await (await fetch(`${api.operatorUrl}/metrics`)).text()
      return Number(/^nodejs_heap_size_used_bytes (\S+)$/m.exec(metrics)![1])
    },
    problems: async () => {
      if (api.process.exitCode !== null || api.process.signalCode !== null)
        return [
          `imds-api ended: ${String(api.process.exitCode ?? api.process.signalCode)}\n${readFileSync(errors, 'utf8')}`,
        ]
      const log = api.log.map((line) => JSON.stringify(line))
      return [
        ...log.filter((line) => /"level":"(?:error|fatal)"/.test(line)).map((line) => `in the log: ${line}`),
        ...log
          .filter((line) => secrets.some((secret) => line.includes(secret)))
          .map((line) => `a secret in the log: ${line}`),
        ...readFileSync(errors, 'utf8')
          .split('\n')
          .filter((line) => !/^(?:|Debugger .*|For help, see: .*|Starting inspector .*)$/.test(line))
          .map((line) => `on standard error: ${line}`),
        ...(await foreignChanges(database, identities)),
        ...(await storeDifferences(database, publisher)),
      ]
    },
  }
}

/** Changes by somebody who must not change the account. */
async function foreignChanges({ pool }: Database, identities: readonly Identity[]): Promise<string[]> {
  const { rows } = await pool.query<{ account: string; actor: string }>(
    "select distinct account_id as account, actor from events where actor not in ('system', 'operator')",
  )
  const mayChange = (account: string, actor: string) =>
    ACCOUNTS.some(({ id, client }) => id === account && client === actor) || // it has made what the account has at first
    identities.some((one) => one.may === 'change' && one.account?.id === account && one.actor === actor)
  return rows
    .filter(({ account, actor }) => !mayChange(account, actor))
    .map(({ account, actor }) => `${actor} has changed something of ${account}`)
}

/** What differs between the store and the database once everything is published. */
async function storeDifferences({ db, pool }: Database, store: Publisher): Promise<string[]> {
  await until(async () => (await pool.query('select from outbox')).rowCount === 0, 'the outbox to be empty', 60_000)
  const { differences } = await compareStore(db, store)
  return differences.map((difference) => `in the store: ${JSON.stringify(difference)}`)
}
