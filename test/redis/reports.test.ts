/**
 * What guests report, in Redis (contract H9): with the users of deploy/redis.acl, while Redis is away, after a kill and
 * after the loss of a state directory, and with an instance that moves or is removed.
 */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { NO_REPORTS } from '../../src/metadata/reports.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { ReportsDocument } from '../../src/imdsd/operator/documents.ts'
import type { Publisher } from '../../src/store/open.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { unlessReset, until, type TestDaemon } from '../support/programs/daemon.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { aDaemon, record, SECRET, serves, urlAs, USERS } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const ACL = USERS.replace(/^(user imds-hv1 .*)\n/m, (line) => `${line}${line.replaceAll('hv1', 'hv2')}`)
const KEYS = keysOf('gb1')
const [HV1, HV2] = [KEYS.reports('hv1', 'srv-n1'), KEYS.reports('hv2', 'srv-n1')]
const OPTIONS = { options: { reports: 'enabled' } }

/** What the journal in a state directory has. */
function journalIn(directory: string): string {
  return readFileSync(`${directory}/view.journal`, 'latin1')
}

async function aRegion(t: Test): Promise<{ redis: TestRedis; store: Publisher }> {
  const redis = await startRedis(t, ['--aclfile', `${testDirectory(t, { 'redis.acl': ACL })}/redis.acl`])
  const store = await openTestStore(t, { url: urlAs('imds-publisher', redis), region: 'gb1', ...SECRET })
  return { redis, store }
}

const aHypervisor = (t: Test, redis: TestRedis, name: string, env: Record<string, string> = {}) =>
  aDaemon(t, urlAs(`imds-${name}`, redis), SECRET, { IMDS_HYPERVISOR: name, ...env })

async function report({ guestPort: port }: TestDaemon, name: string, body: string): Promise<void> {
  const send = (path: string, headers: Record<string, string>, text?: string) =>
    fetch(`http://127.0.0.1:${port}/latest/${path}`, { method: 'PUT', headers, ...(text && { body: text }) })
  const token = await send('api/token', { 'X-aws-ec2-metadata-token-ttl-seconds': '60' })
  const headers = { 'X-aws-ec2-metadata-token': await token.text() }
  const { status } = await send(`reports/${name}`, headers, body)
  if (status !== 200) throw new Error(`the report of ${name} got ${status}`)
}

async function kill(daemon: TestDaemon): Promise<void> {
  daemon.process.kill('SIGKILL')
  await once(daemon.process, 'exit')
}

/** What the daemon knows. */
async function shown(daemon: TestDaemon): Promise<ReportsDocument['claimedByGuest']> {
  const { body } = await daemon.operator('/instances/srv-n1/reports')
  return (JSON.parse(body.toString()) as ReportsDocument).claimedByGuest
}

/** What the store has: name and text. */
async function textsIn(store: Publisher): Promise<Record<string, string>> {
  const { byName } = (await store.reports('srv-n1')) ?? NO_REPORTS
  return Object.fromEntries([...byName].map(([name, { text }]) => [name, text]))
}

const written = (daemon: TestDaemon, count: number) =>
  until(async () => (await daemon.metric('imds_report_writes_total{result="written"}')) === count, 'the write')

t.test('H9: reports are written with the rights of deploy/redis.acl, and go with the instance', async (t) => {
  const { redis, store } = await aRegion(t)
  await store.put(record(1, OPTIONS))
  const daemon = await aHypervisor(t, redis, 'hv1')
  await serves(daemon, 1)
  t.equal(await store.reports('srv-n1'), undefined)
  await report(daemon, 'boot', 'running')
  await report(daemon, 'boot', 'done')
  await report(daemon, 'a', '1')
  await until(async () => (await textsIn(store))['a'] !== undefined, 'the reports in the store')
  t.same(await textsIn(store), { boot: 'done', a: '1' })
  await store.remove('srv-n1')
  t.equal(await redis.client.exists(HV1), 0, 'the script deletes them')
  await until(async () => (await unlessReset(daemon.get('/')))?.status === 503, 'the removal')
  t.equal(await store.reports('srv-n1'), undefined)
  t.same(await redis.client.call('ACL', 'LOG'), [])
})

t.test('H9: values that a hypervisor should not write are ignored, and it may write no other', async (t) => {
  const { redis, store } = await aRegion(t)
  await store.put(record(1, OPTIONS))
  const valid = JSON.stringify({ revision: 1, reports: {} })
  await redis.client.set(HV2, valid)
  t.equal(await store.reports('srv-n1'), undefined, 'of another hypervisor')
  for (const value of [
    'x',
    '{}',
    `${valid}${' '.repeat(16_384)}`,
    '{"revision":1,"reports":{"a":{"text":"\\u0000"}}}',
  ]) {
    await redis.client.set(HV1, value)
    t.equal(await store.reports('srv-n1'), undefined, value.slice(0, 60))
  }
  await redis.client.set(HV1, valid)
  t.match(await store.reports('srv-n1'), { revision: 1 })
  await store.put(record(2, { ...OPTIONS, hypervisors: ['hv3'] }))
  t.equal(await redis.client.exists(HV1), 0)
})

t.test('H9: a forged revision does not make later reports vanish', async (t) => {
  const { redis, store } = await aRegion(t)
  await store.put(record(1, OPTIONS))
  const part = { revision: Number.MAX_SAFE_INTEGER, receivedAt: new Date().toISOString() }
  await redis.client.set(HV1, JSON.stringify({ ...part, reports: { boot: { text: 'error', ...part } } }))
  const env = { IMDS_STATE_DIR: `${t.testdirName}/state` }
  const first = await aHypervisor(t, redis, 'hv1', env)
  await serves(first, 1)
  await report(first, 'boot', 'running')
  await written(first, 1)
  t.same(await textsIn(store), { boot: 'running' })
  await report(first, 'boot', 'done')
  await until(() => journalIn(env.IMDS_STATE_DIR).includes('"text":"done"'), 'the report on the disk')
  await kill(first)
  const second = await aHypervisor(t, redis, 'hv1', env)
  await serves(second, 1)
  await written(second, 1)
  t.match(await shown(second), { reports: [{ name: 'boot', text: 'done' }] })
  t.same(await textsIn(store), { boot: 'done' })
})

t.test('H9: with record keys reports are encrypted, for their instance only', async (t) => {
  const { redis } = await aRegion(t)
  const keys = `${testDirectory(t, { keys: keyLines('k1') })}/keys`
  const store = await openTestStore(t, { url: redis.url, region: 'gb1', recordKeysFile: keys })
  await store.put(record(1, OPTIONS))
  const daemon = await aHypervisor(t, redis, 'hv1', { IMDS_RECORD_KEYS_FILE: keys })
  await serves(daemon, 1)
  await report(daemon, 'a', 'SECRET')
  await written(daemon, 1)
  t.same(await textsIn(store), { a: 'SECRET' })
  const value = (await redis.client.getBuffer(HV1))!
  t.notMatch(value.toString('latin1'), 'SECRET')
  await redis.client.set(HV1, JSON.stringify({ revision: 9, reports: {} }))
  t.equal(await store.reports('srv-n1'), undefined, 'a plain one')
})
