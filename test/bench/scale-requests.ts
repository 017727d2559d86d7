/** What the frequent requests cost in a large region: the time until the response. */
import { join } from 'node:path'
import { purgeActions } from '../../src/imds-api/changes/action-queue.ts'
import { purgeEvents } from '../../src/imds-api/changes/events.ts'
import { purgeKeys } from '../../src/imds-api/changes/keyed-change.ts'
import { purgeServers } from '../../src/imds-api/changes/servers.ts'
import { buildAuth } from '../../src/imds-api/service/rest.ts'
import { pino } from 'pino'
import { largeId } from '../support/fixtures/large-region.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { basic, openState } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { freePort } from '../support/redis/redis.ts'
import { API_FLAGS, advanceDatabase, startProcess } from './processes.ts'
import { median, type Table } from './report.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const WARM_UP = 3
const TIMES = 15

/** Starts imds-api on a state directory, and measures. */
export async function measureRequests(env: Readonly<Record<string, string>>, state: string): Promise<Table> {
  const [port, operatorPort] = [await freePort(), await freePort()]
  const api = startProcess(
    [join(ROOT, 'src/imds-api/main.ts')],
    {
      ...env,
      IMDS_API_LISTEN: `127.0.0.1:${port}`,
      IMDS_API_OPERATOR_LISTEN: `127.0.0.1:${operatorPort}`,
    },
    'ignore',
    API_FLAGS,
  )
  const base = `http://127.0.0.1:${port}`
  const operator = `http://127.0.0.1:${operatorPort}`
  try {
    await until(
      () =>
        fetch(`${operator}/readyz`).then(
          ({ ok }) => ok,
          () => false,
        ),
      'imds-api',
      300_000,
    )
    await advanceDatabase(state)
    const { db, pool, close } = await openState(state)
    try {
      const rows: string[][] = []
      const measure = async (name: string, work: (n: number) => Promise<unknown>, times = TIMES) => {
        for (let n = -WARM_UP; n < 0 && times > 1; n++) await work(n)
        const ms: number[] = []
        for (let n = 0; n < times; n++) {
          const startedMs = performance.now()
          await work(n)
          ms.push(performance.now() - startedMs)
        }
        rows.push([name, median(ms).toFixed(1)])
      }
      const client = (await (
        await ask(
          `${base}/token`,
          'POST',
          { authorization: basic(CLIENT_OF[ONE]) },
          { grant_type: 'client_credentials' },
        )
      ).json()) as { access_token: string }
      const call = async (method: string, path: string, body?: object) => {
        const response = await ask(
          `${base}/1.0/${path}`,
          method,
          { authorization: `Bearer ${client.access_token}` },
          body,
        )
        const text = await response.text()
        if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
        return { json: JSON.parse(text) as { readonly id: string }, link: response.headers.get('link') }
      }
      const get = (path: string) => () => call('GET', path)
      const server = largeId('srv', 77)
      const { link } = await call('GET', 'servers?limit=500')
      await measure('POST /token', () =>
        ask(
          `${base}/token`,
          'POST',
          { authorization: basic(CLIENT_OF[ONE]) },
          { grant_type: 'client_credentials' },
        ).then((one) => one.text()),
      )
      await measure('GET of a server', get(`servers/${server}`))
      await measure('wait for a state that a server has', get(`servers/${server}/wait?status=active`))
      await measure('the first page of 100 servers', get('servers?limit=100'))
      await measure(
        'a page of 100 after 500',
        get(`servers${/^<(\?.*)>/.exec(link!)![1]!.replace('limit=500', 'limit=100')}`),
      )
      await measure('servers by name', get(`servers?name=${server}`))
      await measure('100 servers by status', get('servers?status=inactive&limit=100'))
      await measure('100 servers by tag', get('servers?tag.Role=front&limit=100'))
      await measure('GET of the account with its counts', get('account'), 3)
      await measure('a page of 100 events', get('events?limit=100'))
      const made: string[] = []
      await measure('POST of a server', async () => {
        made.push((await call('POST', 'servers', { image: 'debian-12' })).json.id)
      })
      await measure('from a change of a server until its outbox is empty', async (n) => {
        await call('PUT', `servers/${server}`, { tags: { Role: `role ${n}` } })
        await until(
          async () => (await pool.query('select from outbox where server_id = $1', [server])).rowCount === 0,
          'the outbox',
        )
      })
      await measure('DELETE of a server', (n) => call('DELETE', `servers/${made[n + WARM_UP]!}`))
      await measure('POST of a cloud IP', () => call('POST', 'cloud_ips'))
      await measure('metrics', () => fetch(`${operator}/metrics`).then((one) => one.text()))
      await measure('the status page', () => fetch(`${operator}/`).then((one) => one.text()))
      const auth = buildAuth(
        db,
        { accessTokenSeconds: 60, refreshTokenSeconds: 60 },
        undefined,
        Date.now,
        pino({ enabled: false }),
      )
      await measure(
        'the hourly purge',
        () => Promise.all([auth.purge(), purgeActions(db), purgeKeys(db), purgeEvents(db), purgeServers(db)]),
        1,
      )
      return {
        title: 'imds-api in this region',
        columns: ['', 'median ms'],
        rows,
        notes: [`Each ${TIMES} times, by an account with a tenth of the servers.`],
      }
    } finally {
      await close()
    }
  } finally {
    await api.stop()
  }
}

function ask(url: string, method: string, headers: Record<string, string>, body?: object): Promise<Response> {
  return fetch(url, {
    method,
    headers: { ...headers, ...(body !== undefined && { 'content-type': 'application/json' }) },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  })
}
