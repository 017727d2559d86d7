/** Clients of imds-api that repeat what fails, and the comparison of the store with the database after them. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { openDatabase } from '../../../src/imds-api/database/open.ts'
import type { DatabaseSettings } from '../../../src/imds-api/database/settings.ts'
import { compareStore } from '../../../src/imds-api/publish/compare.ts'
import type { Publisher } from '../../../src/store/open.ts'
import { type TestImdsApi } from '../programs/api.ts'
import { until } from '../programs/daemon.ts'

/** A response; `status` 0: there was none, so the request may or may not have had an effect. */
export interface LoadAnswer {
  readonly status: number
  /** The header Retry-After. */
  readonly retryAfter?: string | undefined
  readonly body: unknown
}

/** Sends a request. Rejects for a body that is not JSON. */
export async function ask(
  baseUrl: string,
  token: string,
  method: string,
  path: string,
  body?: object,
): Promise<LoadAnswer> {
  let response: Response
  try {
    const headers = {
      authorization: `Bearer ${token}`,
      ...(body !== undefined && { 'content-type': 'application/json' }),
    }
    response = await fetch(`${baseUrl}/1.0/${path}`, {
      method,
      headers,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
  } catch {
    return { status: 0, body: undefined }
  }
  const text = await response.text().catch(() => undefined)
  return text === undefined
    ? { status: 0, body: undefined }
    : { status: response.status, retryAfter: response.headers.get('retry-after') ?? undefined, body: JSON.parse(text) }
}

/** Reads what the listener of operators has at a path. */
export async function operator({ operatorUrl }: Pick<TestImdsApi, 'operatorUrl'>, path: string): Promise<unknown> {
  return (await fetch(`${operatorUrl}${path}`)).json()
}

/** The value of a metric; NaN: there is none. */
export async function metric({ operatorUrl }: Pick<TestImdsApi, 'operatorUrl'>, name: string): Promise<number> {
  const text = await (await fetch(`${operatorUrl}/metrics`)).text()
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${name} `))
      ?.slice(name.length + 1) ?? NaN,
  )
}

/** Waits until what a program says of itself is true. It is asked seldom, so that long waits need little CPU time. */
export function untilAsked(condition: () => Promise<boolean>, what: string): Promise<void> {
  const asked = async () => {
    await sleep(300)
    return condition()
  }
  return until(asked, what, 60_000)
}

/** Clients that repeat their requests. */
export interface Clients {
  /** What they were answered: status -> how often. */
  readonly statuses: ReadonlyMap<number, number>
  /** Stops them, and checks that every change which was acknowledged is in the database and in the store. */
  stop(): Promise<ReadonlyMap<string, number>>
}

/**
 * Starts one client for each server: it counts in the server's user_data. `baseUrls`: it asks them in turn. `pauseMs`:
 * between its requests. `stop` returns the last number of each that was acknowledged.
 */
export function startClients(
  t: Test,
  baseUrls: readonly string[],
  token: string,
  servers: readonly string[],
  pauseMs = 0,
): Clients {
  const statuses = new Map<number, number>()
  const acknowledged = new Map<string, number>()
  let isRunning = true as boolean // TypeScript does not see that `stop` changes it
  t.teardown(() => {
    isRunning = false
  })
  const running = Promise.all(
    servers.map(async (id) => {
      for (let n = 1; isRunning; n++) {
        const { status } = await ask(baseUrls[n % baseUrls.length]!, token, 'PUT', `servers/${id}`, {
          user_data: Buffer.from(String(n)).toString('base64'),
        })
        statuses.set(status, (statuses.get(status) ?? 0) + 1)
        if (status === 200) acknowledged.set(id, n)
        const waitMs = status === 200 ? pauseMs : 100
        if (waitMs > 0) await sleep(waitMs)
      }
    }),
  )
  return {
    statuses,
    stop: async () => {
      isRunning = false
      await running
      return acknowledged
    },
  }
}

/** Watches the revisions in a store. `stop` returns those that went back. */
export function watchRevisions(t: Test, store: Publisher): { stop(): Promise<readonly string[]> } {
  const highest = new Map<string, number>()
  const faults: string[] = []
  let isRunning = true as boolean // TypeScript does not see that `stop` changes it
  t.teardown(() => {
    isRunning = false
  })
  const running = (async () => {
    while (isRunning) {
      await sleep(50)
      for (const { id, revision } of await store.list().catch(() => [])) {
        if (revision < (highest.get(id) ?? 0))
          faults.push(`${id} went back from ${String(highest.get(id))} to ${revision}`)
        highest.set(id, revision)
      }
    }
  })()
  return {
    stop: async () => {
      isRunning = false
      await running
      return faults
    },
  }
}

/** Waits until everything is published, and checks that the store is that of the database, with what was acknowledged. */
export async function storeEqualsDatabase(
  t: Test,
  settings: DatabaseSettings,
  store: Publisher,
  acknowledged: ReadonlyMap<string, number> = new Map(),
): Promise<void> {
  const { db, close } = await openDatabase(settings, true, () => undefined)
  try {
    await until(
      async () => (await db.selectFrom('outbox').select('id').limit(1).execute()).length === 0,
      'the outbox to be empty',
    )
    t.match(await compareStore(db, store), { waiting: 0, differences: { length: 0 }, others: { length: 0 } })
    const rows = await db.selectFrom('servers').select(['id', 'user_data']).execute()
    t.strictSame(
      rows.filter(
        ({ id, user_data }) => Number(Buffer.from(user_data ?? '', 'base64').toString()) < (acknowledged.get(id) ?? 0),
      ),
      [],
      'the database has every change that was acknowledged',
    )
  } finally {
    await close()
  }
}
