/**
 * Sealed user-data: no guest gets it, and only an unseal removes the seal. That no put removes one is in
 * world-model.test.ts, in publish.test.ts (files), and in test/unit/store/crypto/encrypting-writer.test.ts.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { startKinds, type KindSettings } from '../support/redis/kinds.ts'
import { withoutPlace } from '../support/redis/without-place.ts'
import { openTestStore } from '../support/test-store.ts'

const { redis, kinds } = await startKinds(t)

const KEYS = keysOf('gb1')
const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
const TIME = '2026-11-20T15:04:05Z'
const LATER = '2026-12-24T00:00:00+01:00'

const record = (revision: number, change: Record<string, unknown> = {}) =>
  anInstance({ revision, fqdn: `r${revision}.example.com`, interfaces: loopback(), ...change })

/** The variables of a daemon with this store. */
const environmentOf = ({ url, recordKeysFile }: KindSettings): Record<string, string> => ({
  IMDS_STORE: url,
  ...(url === redis.url && { IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' }),
  ...(recordKeysFile !== undefined && { IMDS_RECORD_KEYS_FILE: recordKeysFile }),
})

async function aStore(t: Test, kind: string) {
  await redis.client.flushall()
  await redis.client.set('imds:{gb1}:announcement:hv1', '{}') // as if a daemon had announced it
  const kindSettings = kinds[kind]!(t)
  const settings = { ...kindSettings, region: 'gb1' }
  return { store: await openTestStore(t, settings), settings, env: environmentOf(kindSettings) }
}

const documentOf = async (store: Publisher) =>
  (await store.get('srv-abcde'))?.document as Record<string, unknown> | undefined

t.test('imdsctl seals and unseals, and a put reports since when the user-data is sealed', async (t) => {
  const { store, env } = await aStore(t, 'Redis with keys')
  await store.put(record(1), Buffer.from('one'))
  const run = (args: readonly string[], input = '') => imdsctl(args, { env, input })
  t.same(await run(['seal', 'srv-abcde']), { status: 0, stdout: 'sealed srv-abcde at revision 2\n', stderr: '' })
  t.match(await run(['seal', 'srv-abcde']), {
    status: 0,
    stdout: /^the user-data of srv-abcde has been sealed since 2.*Z: nothing to do\n$/,
  })
  t.match(await run(['put', '-'], JSON.stringify(record(3))), {
    status: 0,
    stdout: /^published srv-abcde revision 3, its user-data sealed since 2.*Z\n$/,
  })
  t.match(await run(['--json', 'unseal', 'srv-abcde']), {
    status: 0,
    stdout: /^{"formatVersion":1,"id":"srv-abcde","result":"unsealed","revision":4,"order":\d{16},"sealedAt":null}\n$/,
  })
  t.match(await run(['unseal', 'srv-abcde']), {
    status: 0,
    stdout: 'the user-data of srv-abcde is not sealed: nothing to do\n',
  })
  t.match(await run(['seal', 'srv-nobody']), { status: 1 })
})

t.test('the script keeps a seal for publishers in any language, and removes it on request', async (t) => {
  const { store } = await aStore(t, 'Redis')
  const script = async (...args: string[]) =>
    withoutPlace((await redis.client.eval(SCRIPT, 1, KEYS.region, ...args)) as string[])
  t.same(await script('put', JSON.stringify(record(1)), 'none'), ['published', '1'])
  t.same(await script('put', JSON.stringify(record(2, { sealedAt: TIME })), 'none'), ['published', '2', TIME])
  const pretty = `${JSON.stringify(record(3, { tags: { sealedAt: LATER } }), null, 2)}\n `
  t.same(await script('put', pretty, 'keep'), ['published', '3', TIME])
  t.match(await documentOf(store), { revision: 3, sealedAt: TIME, tags: { sealedAt: LATER } })
  t.same(await script('put', pretty, 'keep'), ['unchanged', '3', TIME])
  t.same(await script('put', JSON.stringify(record(4, { sealedAt: LATER })), 'none'), ['published', '4', TIME])
  t.match(await documentOf(store), { revision: 4, sealedAt: TIME })
  for (const sealedAt of [
    true,
    'yesterday',
    null,
    '2026-11-20',
    '2026-00-20T15:04:05Z',
    '2026-11-20T24:04:05Z',
    '2026-02-30T15:04:05Z',
    '2100-02-29T15:04:05Z',
    '2026-11-31T15:04:05Z',
    '1969-12-31T15:04:05Z',
    '9999-12-31T23:59:59-23:59',
    '2026-11-20T15:04:05',
    '2026-11-20T15:04:05Z"',
    `2026-11-20T15:04:05.${'0'.repeat(20)}Z`,
  ]) {
    t.match(
      await script('put', JSON.stringify(record(5, { sealedAt })), 'none'),
      ['refused', 'invalid', /sealedAt is not a time/],
      JSON.stringify(sealedAt),
    )
  }
  t.match(await script('unseal', JSON.stringify(record(5, { sealedAt: TIME })), 'none'), [
    'refused',
    'invalid',
    /a record that unseals must not have sealedAt/,
  ])
  t.same(
    await script('unseal', JSON.stringify(record(4)), 'none'),
    ['refused', 'stale', '4'],
    'an unseal needs a new revision',
  )
  await redis.client.hdel(KEYS.instances, 'srv-abcde')
  t.same(
    await script('put', JSON.stringify(record(5)), 'none'),
    ['published', '5', TIME],
    'the seal in the record counts when the index is lost',
  )
  t.same(await script('unseal', JSON.stringify(record(6)), 'none'), ['published', '6'])
  t.same(await script('put', JSON.stringify(record(7)), 'none'), ['published', '7'])
})

t.test('a seal with an invalid time, written by hand, is a fault, and the next put removes it', async (t) => {
  const { store, env } = await aStore(t, 'files')
  const directory = env['IMDS_STORE']!.slice('file:'.length)
  await store.put(record(1))
  for (const [revision, sealedAt] of [
    [2, 'yes'],
    [3, true],
    [4, '2026-13-01T00:00:00Z'],
  ] as const) {
    writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(record(revision - 1, { sealedAt })))
    await t.rejects(store.seal('srv-abcde'), /record of srv-abcde is faulty: publish a valid one/)
    const put = await store.put(record(revision))
    t.match(put, { kind: 'published' })
    t.notOk('instance' in put && 'sealedAt' in put.instance)
  }
})

t.test('sealed user-data is removed from view and journal, and the launch gate can wait for that', async (t) => {
  const { store, env } = await aStore(t, 'Redis')
  await store.put(record(1), Buffer.from('S3CRET'))
  const daemon = await startDaemon(t, { ...env, IMDS_RESYNC_SECONDS: '3600' })
  const journal = () => readFileSync(join(daemon.directory, 'view.journal'), 'latin1')
  await until(
    async () =>
      (await daemon.metric('imds_journal_rewrites_total{result="written"}')) > 0 && journal().includes('S3CRET'),
    'the journal',
  )
  await store.seal('srv-abcde')
  t.same(await imdsctl(['wait', 'srv-abcde', '--revision', '2', '--operator', daemon.operatorSocket]), {
    status: 0,
    stdout: 'srv-abcde is served at revision 2\n',
    stderr: '',
  })
  t.equal((await daemon.get('/latest/user-data')).status, 404)
  await until(() => !journal().includes('S3CRET'), 'the seal in the journal', 40_000)
})
