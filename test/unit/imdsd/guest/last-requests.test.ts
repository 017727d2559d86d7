import { expect, test } from 'vitest'
import { LastRequests } from '../../../../src/imdsd/guest/last-requests.ts'
import { TOPICS } from '../../../../src/metadata/target.ts'
import { aGuestServer } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

test('H10: a kind of path has its last result, time and user agent, and how often it was asked for', async () => {
  const { put, ask, view, requests } = aGuestServer()
  const { id } = put(anInstance())
  const headers = { 'user-agent': 'Cloud-Init/25.1' }
  await ask({ url: '/latest/user-data', headers })
  await ask({ url: '/latest/meta-data/instance-id', headers })
  await ask({ url: '/latest/user-data', headers: { 'x-forwarded-for': '10.0.0.1' } })
  const [userData, instanceId, ...more] = requests.of(view.get(id)!)
  expect(userData).toMatchObject({ topic: 'user-data', outcome: 'forwarded', count: 2 })
  expect(instanceId).toMatchObject({ topic: 'instance-id', outcome: 'served', agent: 'Cloud-Init/25.1', count: 1 })
  expect(more).toEqual([])
})

test('H10: the rows last over changes of the instance, and end when the view removes it', async () => {
  const { put, ask, view, requests } = aGuestServer()
  const { id } = put(anInstance())
  await ask('/latest/meta-data/')
  put(anInstance({ revision: 2 }))
  await ask('/latest/meta-data/')
  expect(requests.of(view.get(id)!)).toMatchObject([{ topic: 'meta-data/', count: 2 }])
  view.remove(id, 1)
  put(anInstance({ revision: 3 }))
  expect(requests.of(view.get(id)!)).toEqual([])
})

test('H10: a request beyond the fair share has its row', async () => {
  const { put, ask, view, requests } = aGuestServer({ share: { burst: 0, perSecond: 0.001, connections: 64 } })
  const { id } = put(anInstance())
  let status = 200
  for (let n = 0; n < 1_000 && status === 200; n++) status = (await ask('/latest/meta-data/')).status
  expect(status).toBe(503)
  expect(requests.of(view.get(id)!)[0]).toMatchObject({ outcome: 'over-share' })
})

test('H10: whatever a guest sends, it has a row for each kind of path, with 128 characters of a user agent', () => {
  const requests = new LastRequests()
  const owner = { stay: {} }
  const found = { kind: 'owned', owner } as unknown as Parameters<LastRequests['note']>[0]
  for (let n = 0; n < 1_000; n++) {
    const topic = TOPICS[n % TOPICS.length]!
    requests.note(found, topic, 'served', `${n}`.padEnd(5_000, 'x'), n)
  }
  const rows = requests.of(owner)
  expect(rows.map(({ topic }) => topic).sort()).toEqual([...TOPICS].sort())
  expect(rows[0]).toMatchObject({ agent: '999'.padEnd(128, 'x'), atMs: 999 })
})

test('a request of an unknown or contested address has no row', () => {
  const requests = new LastRequests()
  for (const kind of ['unknown', 'contested'] as const) requests.note({ kind }, 'other', 'unknown-peer', 'x', 0)
  expect(requests.of({ stay: {} })).toEqual([])
})
