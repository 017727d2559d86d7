/** What guests have reported: who may read it, and what a store that hangs does. test/imds-api/guest.test.ts has a guest. */
import t from 'tap'
import type { Reports } from '../../src/metadata/reports.ts'
import { DEFAULT_CONNECTIONS } from '../../src/imds-api/database/settings.ts'
import { readShare } from '../../src/imds-api/http/read-share.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

/** How the store answers, and how often it was asked. */
let answer: () => Promise<Reports | undefined> = () => Promise.resolve(undefined)
let asked = 0
const api = await anApi(t, {
  reports: () => {
    asked += 1
    return answer()
  },
})
const options = { reports: 'enabled' }
const { body } = await api.call('POST', '/1.0/servers', { image: 'img-deb12', metadata_options: options })
const { id } = body as { id: string }
await setRow(api.database.db, 'servers', id, { is_published: true })
const read = (of = id, account: typeof ONE | typeof TWO = ONE) =>
  api.call('GET', `/1.0/servers/${of}/reports`, undefined, account)

t.test('the account of a server reads what its guest has reported, and no other account does', async (t) => {
  t.match(await read(), { status: 200, body: [] }, 'nothing yet')
  const report = { text: 'done', revision: 1, receivedAt: '2026-01-01T00:00:00.123Z' }
  answer = () => Promise.resolve({ revision: 1, byName: new Map([['boot', report]]) })
  t.strictSame((await read()).body, [{ name: 'boot', text: 'done', received_at: '2026-01-01T00:00:00Z' }])
  t.match(await read(id, TWO), { status: 404, body: { error_name: 'resource_not_found' } })
  t.match(await read('srv-none1'), { status: 404 })
})

t.test('of a guest that may not report, the store is not asked', async (t) => {
  const before = asked
  await api.call('PUT', `/1.0/servers/${id}`, { metadata_options: { reports: 'disabled' } })
  t.match(await read(), { status: 200, body: [] })
  t.equal(asked, before)
  await api.call('PUT', `/1.0/servers/${id}`, { metadata_options: options })
})

t.test('no other read waits while the store hangs, and its failure is 503', async (t) => {
  const hanging = Promise.withResolvers<undefined>()
  answer = () => hanging.promise
  const before = asked
  const { atOnce } = readShare(DEFAULT_CONNECTIONS)
  const reads = Array.from({ length: atOnce }, () => read())
  await until(() => asked === before + atOnce, 'the reads to wait for the store')
  t.match(await api.call('GET', `/1.0/servers/${id}`), { status: 200, body: { id } })
  hanging.reject(new Error('gone'))
  for (const one of reads)
    t.match(await one, {
      status: 503,
      headers: { 'retry-after': /\d/ },
      body: { errors: ['the store of the region does not answer: try again'] },
    })
})
