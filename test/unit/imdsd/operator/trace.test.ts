import Value from 'typebox/value'
import { expect, test } from 'vitest'
import { TraceSchema } from '../../../../src/imdsd/operator/documents.ts'
import { recentRequests, traceOf } from '../../../../src/imdsd/operator/trace.ts'
import { aGuestServer } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

/** A guest server, and what operators see of its traces. */
function aServer() {
  const guest = aGuestServer()
  const parts = { ...guest, now: () => performance.now(), wall: () => Date.now() }
  return { ...guest, parts }
}

test('H10: a trace has wall times and results, and no user-data, key or token', async () => {
  const { put, ask, parts } = aServer()
  const { id, publicKeys } = put(anInstance({ revision: 7 }), Buffer.from('a-secret'))
  const startedMs = Date.now()
  const { text: token } = await ask({
    method: 'PUT',
    url: '/latest/api/token',
    headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
  })
  const headers = { 'x-aws-ec2-metadata-token': token, 'user-agent': 'Cloud-Init/25.1' }
  for (const url of ['/latest/user-data', '/latest/meta-data/public-keys/0/openssh-key', '/latest/x'])
    await ask({ url, headers })
  const trace = traceOf(parts, id)
  expect(Value.Check(TraceSchema, trace)).toBe(true)
  expect(trace).toMatchObject({
    id,
    revision: 7,
    boot: {
      recognised: true,
      requests: 4,
      withToken: 3,
      userAgents: [expect.any(String), 'Cloud-Init/25.1'],
    },
  })
  expect(trace?.boot?.topics.map(({ topic, served }) => [topic, served])).toEqual([
    ['token', 1],
    ['user-data', 1],
    ['public-keys', 1],
    ['other', 0],
  ])
  expect(trace?.boot?.refusals).toMatchObject([{ reason: 'not-found', status: 404, requests: 1 }])
  expect(trace?.recent[0]).toMatchObject({ status: 404, reason: 'not-found', topic: 'other' })
  const firstMs = Date.parse(trace?.boot?.firstRequestAt ?? '')
  expect(firstMs).toBeGreaterThanOrEqual(startedMs - 5)
  expect(firstMs).toBeLessThanOrEqual(Date.now())
  for (const secret of ['a-secret', token, publicKeys[0]!.key.split(' ')[1]!])
    expect(JSON.stringify(trace)).not.toContain(secret)
})

test('an instance whose guest sent no request has no boot; one that is not served has no trace', () => {
  const { put, view, parts } = aServer()
  const { id } = put(anInstance())
  expect(traceOf(parts, id)).toEqual({ id, revision: 1, recent: [] })
  expect(recentRequests(parts, view.get(id)!)).toEqual([])
  expect(traceOf(parts, 'srv-other')).toBeUndefined()
})

test('the last requests have their times', async () => {
  const { put, ask, view, parts } = aServer()
  const { id } = put(anInstance())
  await ask({ url: '/latest/user-data', headers: { forwarded: 'for=10.0.0.9' } })
  const later = { ...parts, wall: () => Date.now() + 3_600_000 } // the clock was set
  const [request] = recentRequests(later, view.get(id)!)
  expect(request).toMatchObject({ status: 403, reason: 'forwarded', topic: 'user-data' })
  expect(Date.parse(request!.at)).toBeGreaterThan(Date.now() + 3_500_000)
})
