/**
 * Texts of other programs in the store (records, ids, names of hypervisors) reach no terminal as escape sequences:
 * neither from imdsctl nor from the daemon's log.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, aSource, aStore, record, serves } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const KEYS = keysOf('gb1')
/** Clears the screen in two ways, and reverses what follows. */
const HOSTILE = 'x\u001b[2J\u009b2J\u202ey'
const ESCAPED = 'x\\u001b[2J\\u009b2J\\u202ey'
// eslint-disable-next-line no-control-regex
const ACTIVE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/

t.test("hostile names and records are escaped by list and get, and in the daemon's log", async (t) => {
  const redis = await startRedis(t)
  const store = await aStore(t, redis.url)
  await store.put(record(1))
  const written = testDirectory(t, { log: '' })
  const daemon = await aDaemon(t, redis.url, {}, { IMDS_RESYNC_SECONDS: '1' }, [
    'bash',
    '-c',
    'exec "$@" > >(tee "$0")',
    `${written}/log`,
  ])
  await serves(daemon, 1)
  const env = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }
  const faulty = {
    ...record(2),
    [HOSTILE]: HOSTILE,
    fqdn: HOSTILE,
    revision: HOSTILE,
    tags: { [HOSTILE]: 5 },
    interfaces: [{ id: HOSTILE, macAddress: HOSTILE }],
  }
  await redis.client.hset(KEYS.instance('srv-n1'), 'record', JSON.stringify(faulty), 'digest', HOSTILE)
  await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n1', HOSTILE, HOSTILE, HOSTILE)
  await redis.client.hset(
    KEYS.instances,
    'srv-n1',
    JSON.stringify({ revision: '1', hypervisors: [HOSTILE], addresses: [HOSTILE] }),
  )
  await redis.client.publish(KEYS.notices('hv1'), HOSTILE)
  await redis.client.publish(KEYS.notices('hv1'), 'srv-n1')
  for (const [args, part] of [
    [['list'], `srv-n1  1         ${ESCAPED}  -       ${ESCAPED}\n`],
    [['get', 'srv-n1'], `"fqdn": "${ESCAPED}"`],
    [['--json', 'list'], `"hypervisors":["${ESCAPED}"]`],
  ] as const) {
    const { stdout, stderr } = await imdsctl(args, { env })
    t.ok(stdout.includes(part), `${args.join(' ')} prints it escaped: ${JSON.stringify(stdout)}`)
    t.notMatch(stdout + stderr, ACTIVE)
  }
  await until(() => readFileSync(`${written}/log`, 'utf8').includes(ESCAPED), 'the log line')
  t.notMatch(readFileSync(`${written}/log`, 'utf8'), ACTIVE)
})

t.test('a source passes on only ids of the index, of notices and of owners', async (t) => {
  const redis = await startRedis(t)
  const noticed: string[] = []
  const source = await aSource(t, redis.url, 16_384, undefined, (id) => noticed.push(id))
  const noIds = ['', '..', '../victim', 'a/b', '.hidden', 'a b', 'a\n', 'a\0', 'a:b', 'a'.repeat(65)]
  for (const id of [...noIds, 'srv-n1']) {
    await redis.client.hset(KEYS.hypervisor('hv1'), id, 'digest')
    await redis.client.publish(KEYS.notices('hv1'), id)
  }
  t.same([...(await source.index()).digests.keys()], ['srv-n1'])
  await redis.client.hset(KEYS.addresses('default'), '10.0.0.2', 'srv-n1', '10.0.0.3', '../victim')
  await redis.client.zadd(KEYS.ranges('default'), 0, `${'2'.repeat(32)} ../victim`)
  const owners = ['10.0.0.2', '10.0.0.3', '2222:2222:2222:2222:2222:2222:2222:2222']
  t.same(await Promise.all(owners.map((address) => source.owner('default', address))), ['srv-n1', undefined, undefined])
  await until(() => noticed.length > 0, 'the notice')
  t.same(noticed, ['srv-n1'])
})
