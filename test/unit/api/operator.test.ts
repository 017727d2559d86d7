import { Registry } from 'prom-client'
import { expect, test } from 'vitest'
import { buildOperatorServer } from '../../../src/api/operator.ts'

function aServer({ isAway = false, problem = undefined as string | undefined } = {}) {
  const pool = { query: () => (isAway ? Promise.reject(new Error('connect ECONNREFUSED')) : Promise.resolve()) }
  return buildOperatorServer({ database: { pool } as never, publisher: { problem }, registry: new Registry() })
}

test('it is ready while the database answers, and names a store that cannot be used', async () => {
  for (const [parts, status, body] of [
    [{}, 200, { ready: true, database: 'reachable', publishing: 'working' }],
    [
      { problem: 'Redis is unreachable' },
      200,
      { ready: true, database: 'reachable', publishing: 'Redis is unreachable' },
    ],
    [{ isAway: true }, 503, { ready: false, database: 'connect ECONNREFUSED', publishing: 'working' }],
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
