/**
 * Redis with users: what deploy/redis.acl allows the daemon and the control plane, and passwords that change at run
 * time.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { openStore } from '../../src/store/open.ts'
import { unlessReset, until } from '../support/programs/daemon.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import {
  aDaemon,
  aStore,
  connected,
  guestsWithoutPause,
  logsReason,
  reasons,
  record,
  SECRET,
  serves,
  urlAs,
  USERS,
} from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const KEYS = keysOf('gb1')

async function aRedisWithUsers(t: Test): Promise<TestRedis> {
  const directory = testDirectory(t, { 'redis.acl': USERS })
  return await startRedis(t, ['--aclfile', `${directory}/redis.acl`])
}

/** Runs commands, each with its arguments as one text, as a user. Returns those that Redis refuses. */
async function refused(t: Test, redis: TestRedis, user: string, commands: readonly string[]): Promise<string[]> {
  const client = new Redis(redis.url, { username: user, password: 'secret', enableReadyCheck: false })
  t.teardown(() => client.disconnect())
  const answers = await Promise.all(
    commands.map(async (command) => {
      const [name, ...args] = command.split(' ')
      return client.call(name!, ...args).then(
        () => 'done',
        (error: unknown) => String(error),
      )
    }),
  )
  return commands.filter((_command, i) => answers[i]!.includes('NOPERM'))
}

t.test('with the users of deploy/redis.acl all functions work, and Redis refuses no command', async (t) => {
  const redis = await aRedisWithUsers(t)
  const store = await aStore(t, urlAs('imds-publisher', redis), SECRET)
  for (const n of ['3', '4']) {
    // several instances are loaded with other commands than one instance
    await store.put(
      record(1, {
        id: `srv-n${n}`,
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:f0', ipv4Addresses: [`10.0.1.${n}/24`] }],
      }),
    )
  }
  const daemon = await aDaemon(t, urlAs('imds-hv1', redis), SECRET, { IMDS_RESYNC_SECONDS: '1' })
  const prefix = {
    id: 'int-b',
    macAddress: '02:24:19:00:00:ef',
    ipv4Addresses: ['10.0.0.2/30'],
    ipv6Prefixes: ['2a02:1348:178:1::/64'],
  }
  const first = record(1)
  await store.put({ ...first, interfaces: [...(first['interfaces'] as object[]), prefix] }, Buffer.from('one'))
  await serves(daemon, 1)
  t.equal((await daemon.get('/latest/meta-data/hostname', '127.0.0.9')).status, 503, 'an unknown peer')
  await store.put(record(2))
  await serves(daemon, 2)
  t.equal(Buffer.from((await store.get('srv-n1'))!.userData!).toString(), 'one')
  await until(async () => (await store.hypervisors()).length === 1, 'the daemon to announce itself')
  const file = testDirectory(t, {
    'record.json': JSON.stringify(record(3)),
    keys: `new:${Buffer.alloc(32, 7).toString('base64')}`,
  })
  const settings = [
    '--store',
    urlAs('imds-publisher', redis),
    '--password-file',
    SECRET.passwordFile!,
    '--region',
    'gb1',
  ]
  const run = async (...args: string[]) => {
    const { status, stderr } = await imdsctl([...settings, ...args])
    t.equal(status, 0, `${args.join(' ')}: ${stderr}`)
  }
  const { stdout } = await imdsctl([...settings, 'acl', '--all'])
  t.equal(stdout, USERS.replace('>secret', '>PASSWORD').replace(/\n[^]*/, '\n'), 'of the only hypervisor')
  t.match(await imdsctl([...settings, 'acl']), { status: 64, stderr: /give either the name of a hypervisor or --all/ })
  for (const args of [
    ['put', `${file}/record.json`],
    ['get', 'srv-n1'],
    ['user-data', 'srv-n1'],
    ['list'],
    ['hypervisors'],
    ['drain', 'hv1'],
    ['undrain', 'hv1'],
    ['evacuate', 'hv9', '--to', 'hv1'],
    ['forget', 'hv9'],
    ['seal', 'srv-n1'],
    ['unseal', 'srv-n1'],
    ['--record-keys', `${file}/keys`, 'encrypt', '--from-plain'],
    ['--record-keys', `${file}/keys`, 'encrypt'],
  ])
    await run(...args)
  const now = new Date().toISOString()
  for (const name of ['hv2', 'hv3'])
    await store.fleet.announceControlPlane({ version: '0', seenAt: now }, new Map([[name, now]]))
  t.same([...(await store.fleet.drained()).keys()], ['hv3'])
  await run('--record-keys', `${file}/keys`, 'remove', 'srv-n1')
  await until(async () => (await unlessReset(daemon.get('/latest/meta-data/hostname')))?.status === 503, 'the removal')
  t.match(await store.tombstones(), [{ id: 'srv-n1' }])
  t.same(await redis.client.call('ACL', 'LOG'), [])
  t.notMatch(JSON.stringify(daemon.log), 'secret', 'invariant 9: the password is never logged')
})

t.test("the daemon's user may not write, read other regions or receive notices of other hypervisors", async (t) => {
  const redis = await aRedisWithUsers(t)
  await (await aStore(t, redis.url)).put(record(1))
  const forbidden = [
    `set ${KEYS.region} 1`,
    `hset ${KEYS.hypervisor('hv1')} a b`,
    `set ${KEYS.announcement('hv2')} {}`,
    `set ${KEYS.reports('hv2', 'srv-n1')} {}`,
    `del ${KEYS.reports('hv2', 'srv-n1')}`,
    `set ${KEYS.reports('hv', 'srv-n1')} {}`,
    `append ${KEYS.reports('hv1', 'srv-n1')} {}`,
    `del ${KEYS.instance('srv-n1')}`,
    `hset ${KEYS.instance('srv-n1')} record {}`,
    `hdel ${KEYS.hypervisor('hv1')} srv-n1`,
    `expire ${KEYS.region} 1`,
    `rename ${KEYS.region} x`,
    `publish ${KEYS.notices('hv1')} srv-n1`,
    `eval return 1 ${KEYS.region}`,
    'flushall',
    'config get *',
    'acl list',
    'get other',
    'get imds:{gb2}',
    'hgetall imds:{gb2}:hypervisor:hv1',
    'keys *',
    'scan 0',
    `subscribe ${KEYS.notices('hv2')}`,
    'psubscribe *',
    'shutdown',
  ]
  t.same(await refused(t, redis, 'imds-hv1', forbidden), forbidden)
  t.same(
    await refused(t, redis, 'imds-hv1', [
      `get ${KEYS.region}`,
      `set ${KEYS.announcement('hv1')} {}`,
      `subscribe ${KEYS.notices('hv1')}`,
    ]),
    [],
  )
})

t.test("the control plane's user may publish to its region and nothing else", async (t) => {
  const redis = await aRedisWithUsers(t)
  const forbidden = [
    `expire ${KEYS.region} 1`,
    `rename ${KEYS.region} x`,
    'keys *',
    'flushall',
    'config get *',
    'acl list',
    'get other',
    'set imds:{gb2} 1',
    'publish imds:{gb2}:notices:hv1 x',
    'publish other x',
    `subscribe ${KEYS.notices('hv1')}`,
    'psubscribe *',
    'shutdown',
    'script flush',
  ]
  t.same(await refused(t, redis, 'imds-publisher', forbidden), forbidden)
  const otherRegion = await openStore({ url: urlAs('imds-publisher', redis), region: 'gb2', ...SECRET }).then(
    () => 'opened',
    (error: unknown) => String(error),
  )
  t.match(otherRegion, /NOPERM/)
})

t.test('the daemon logs a missing permission once and retries until it is granted', async (t) => {
  const redis = await aRedisWithUsers(t)
  const errors = `${t.testdirName}/standard-error`
  for (const [change, back, reason] of [
    ['-info', '+info', /NOPERM.*'info'/],
    ['resetchannels', `&${KEYS.notices('hv1')}`, /NOPERM.*channel/],
    ['resetkeys', '~imds:{gb1}*', /NOPERM.*key/],
  ] as const) {
    await redis.client.call('ACL', 'SETUSER', 'imds-hv1', change)
    const daemon = await aDaemon(t, urlAs('imds-hv1', redis), SECRET, {}, ['sh', '-c', 'exec "$@" 2>> "$0"', errors])
    await logsReason(daemon, reason)
    await redis.client.call('ACL', 'SETUSER', 'imds-hv1', back)
    await connected(daemon)
    t.equal(reasons(daemon).length, 1, `logged once: ${change}`)
  }
  t.equal(readFileSync(errors, 'utf8'), '')
})

t.test('a password that changes at run time is read again: guests notice nothing, and changes arrive', async (t) => {
  const redis = await aRedisWithUsers(t)
  const directory = t.testdirName
  for (const file of ['daemon', 'publisher']) writeFileSync(`${directory}/${file}`, 'secret\n')
  const daemon = await aDaemon(t, urlAs('imds-hv1', redis), { passwordFile: `${directory}/daemon` })
  const store = await aStore(t, urlAs('imds-publisher', redis), { passwordFile: `${directory}/publisher` })
  await store.put(record(1))
  await serves(daemon, 1)
  const guests = guestsWithoutPause(t, daemon)
  for (const [user, file] of [
    ['imds-hv1', 'daemon'],
    ['imds-publisher', 'publisher'],
  ] as const) {
    await redis.client.call('ACL', 'SETUSER', user, '<secret', '>changed')
    await redis.client.call('CLIENT', 'KILL', 'USER', user)
    if (user === 'imds-hv1') await logsReason(daemon, /WRONGPASS/)
    writeFileSync(`${directory}/${file}`, 'changed\n')
  }
  await store.put(record(2))
  await serves(daemon, 2)
  t.same(await guests.stop(), [])
  t.notMatch(JSON.stringify(daemon.log), /secret|changed/)
})
