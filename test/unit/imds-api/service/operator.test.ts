import { Registry } from 'prom-client'
import { expect, test } from 'vitest'
import { buildOperatorServer } from '../../../../src/imds-api/service/operator.ts'
import type { PublishProblem } from '../../../../src/imds-api/publish/outbox-publisher.ts'

function aServer({
  isAway = false,
  problem = undefined as PublishProblem | undefined,
  isStoreBehind = false,
  isStopping = false,
  password = undefined as string | undefined,
} = {}) {
  const pool = { query: () => (isAway ? Promise.reject(new Error('connect ECONNREFUSED')) : Promise.resolve()) }
  return buildOperatorServer({
    database: { pool } as never,
    publisher: { problem, isStoreBehind },
    isStopping: () => isStopping,
    page: ({ search }) => Promise.resolve(`page of ${search}`),
    conditions: () => Promise.resolve([]),
    registry: new Registry(),
    password,
    now: () => 0,
  })
}

test('it is ready while the database answers, until it stops, and names what is wrong with the store', async () => {
  const ready = { ready: true, stopping: false, database: 'reachable', publishing: 'working' }
  for (const [parts, status, body] of [
    [{}, 200, ready],
    [
      { problem: { reason: 'Redis is unreachable', isDatabaseAway: false } },
      200,
      { ...ready, publishing: 'Redis is unreachable' },
    ],
    [{ isStoreBehind: true }, 200, { ...ready, storeBehind: true }],
    [{ isAway: true }, 503, { ...ready, ready: false, database: 'the database does not answer: connect ECONNREFUSED' }],
    [{ isStopping: true }, 503, { ...ready, ready: false, stopping: true }],
  ] as const) {
    const answer = await aServer(parts).inject('/readyz')
    expect([answer.statusCode, answer.json()]).toEqual([status, body])
  }
})

test('it is alive even without the database, and has metrics', async () => {
  const server = aServer({ isAway: true })
  expect((await server.inject('/livez')).statusCode).toBe(200)
  expect((await server.inject('/metrics')).headers['content-type']).toMatch(/^text\/plain/)
})

test('its status page and its conditions need the password or a Host header of its own; probes need none', async () => {
  const statuses = (password: string | undefined, headers: Readonly<Record<string, string>>) => {
    const server = aServer({ password })
    const get = async (url: string) => (await server.inject({ url, headers: { ...headers } })).statusCode
    return Promise.all(['/', '/conditions', '/metrics', '/livez', '/readyz'].map(get))
  }
  const host = 'api.example'
  expect(await statuses(undefined, { host: '127.0.0.1:9170' })).toEqual([200, 200, 200, 200, 200])
  expect(await statuses(undefined, { host })).toEqual([421, 421, 200, 200, 200])
  expect(await statuses('secret', { host })).toEqual([401, 401, 401, 200, 200])
  const authorization = `Basic ${Buffer.from('x:secret').toString('base64')}`
  expect(await statuses('secret', { host, authorization })).toEqual([200, 200, 200, 200, 200])
  expect((await aServer().inject('/?q=hv1')).body).toBe('page of hv1')
})
