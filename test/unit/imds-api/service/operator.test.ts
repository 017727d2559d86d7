import { Registry } from 'prom-client'
import { expect, test } from 'vitest'
import { buildOperatorServer } from '../../../../src/imds-api/service/operator.ts'
import type { PublishProblem } from '../../../../src/imds-api/publish/outbox-publisher.ts'
import type { RegionHypervisors } from '../../../../src/imds-api/publish/hypervisors.ts'

const NONE: RegionHypervisors = { hypervisors: [], storeProblem: undefined }

function aServer({
  isAway = false,
  problem = undefined as PublishProblem | undefined,
  isStoreBehind = false,
  isStopping = false,
  all = NONE,
  password = undefined as string | undefined,
} = {}) {
  const hypervisors = () => Promise.resolve(all)
  const pool = { query: () => (isAway ? Promise.reject(new Error('connect ECONNREFUSED')) : Promise.resolve()) }
  return buildOperatorServer({
    database: { pool } as never,
    publisher: { problem, isStoreBehind },
    isStopping: () => isStopping,
    hypervisors,
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

test('it lists the hypervisors with their places, and with what their daemons have announced', async () => {
  const drained_at = new Date('2026-11-23T09:00:00Z')
  const placed = { zone: 'gb1-a', ram: 4096, free: 1024, servers: 3 }
  const announced = { name: 'hv1', version: '0.1.0', instances: 3, lagSeconds: 2, seenAt: '2026-11-23T09:00:01Z' }
  const all = {
    hypervisors: [
      { name: 'hv1', ...placed, drained_at, announced },
      { name: 'hv2', ...placed, drained_at: null, announced: undefined },
    ],
    storeProblem: undefined,
  }
  const body = {
    hypervisors: [
      {
        name: 'hv1',
        ...placed,
        drained_at: '2026-11-23T09:00:00.000Z',
        version: '0.1.0',
        instances: 3,
        lag_seconds: 2,
        seen_at: '2026-11-23T09:00:01Z',
      },
      { name: 'hv2', ...placed, drained_at: null, version: null, instances: null, lag_seconds: null, seen_at: null },
    ],
    store: 'reachable',
  }
  expect((await aServer({ all }).inject('/hypervisors')).json()).toEqual(body)
  const away = { ...all, storeProblem: 'Redis is unreachable' }
  expect((await aServer({ all: away }).inject('/hypervisors')).json()).toMatchObject({ store: 'Redis is unreachable' })
})

test('its status page and its hypervisors need the password or a Host header of its own; probes need none', async () => {
  const statuses = (password: string | undefined, headers: Readonly<Record<string, string>>) => {
    const server = aServer({ password })
    const get = async (url: string) => (await server.inject({ url, headers: { ...headers } })).statusCode
    return Promise.all(['/', '/hypervisors', '/metrics', '/livez', '/readyz'].map(get))
  }
  const host = 'api.example'
  expect(await statuses(undefined, { host: '127.0.0.1:9170' })).toEqual([200, 200, 200, 200, 200])
  expect(await statuses(undefined, { host })).toEqual([421, 421, 200, 200, 200])
  expect(await statuses('secret', { host })).toEqual([401, 401, 401, 200, 200])
  const authorization = `Basic ${Buffer.from('x:secret').toString('base64')}`
  expect(await statuses('secret', { host, authorization })).toEqual([200, 200, 200, 200, 200])
  expect((await aServer().inject('/?q=hv1')).body).toBe('page of hv1')
})
