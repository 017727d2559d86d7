/**
 * The changes of a whole fleet that docs/operations/jobs.md describes, with its commands, while guests ask without a pause:
 * another Redis, and new passwords, certificates and keys.
 */
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import t from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { until } from '../support/programs/daemon.ts'
import { runExample } from '../support/programs/example.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { startFleet, type Member } from '../support/redis/fleet.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { aStore } from '../support/redis/shapes.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { executed } from '../tools/documents.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const NAMES = ['hv1', 'hv2']
const NO_ADDRESS = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [] }]
const OLD = 'old-one\n'

/** imdsctl with a store. */
const imdsctl = (url: string) => [process.execPath, IMDSCTL, '--store', url, '--region', 'gb1']

t.test('a region moves to another Redis, one hypervisor after another, and no request fails', async (t) => {
  const [old, next] = [await startRedis(t), await startRedis(t)]
  const store = await aStore(t, old.url)
  const fleet = await startFleet(t, NAMES, store, () => ({ IMDS_STORE: old.url }))
  await store.put(anInstance({ id: 'srv-sealed', hypervisors: ['hv1'], interfaces: NO_ADDRESS }))
  await store.seal('srv-sealed')
  const ssh = fleet.ssh(async (member, command) => {
    const [, url] = /IMDS_STORE=(redis:[^|]+)\|.* systemctl restart imds$/.exec(command) ?? []
    await member.restart({ env: { IMDS_STORE: url! } })
  })
  const { status, stdout, stderr } = await runExample(
    t,
    executed('docs/operations/jobs.md', 'move a region').replaceAll('redis://new.example.com', next.url),
    { programs: { ssh }, commands: { imdsctl: imdsctl(old.url) } },
  )
  t.equal(status, 0, stderr)
  t.match(stdout.toString(), /3 records, 0 tombstones: region\n3 records: 3 published/)
  await old.kill()
  const moved = await aStore(t, next.url)
  t.match((await moved.get('srv-sealed'))!.document, { revision: 2, sealedAt: /Z$/ })
  await fleet.publish(moved)
  t.same(await fleet.failures(), [])
})

t.test('passwords, certificates and record keys change, and no request fails', async (t) => {
  const directory = testDirectory(t, {})
  const [ours, next] = [await anAuthority(directory, 'ours'), await anAuthority(directory, 'next')]
  const [server, client] = [await ours.issue('redis'), await ours.issue('client')]
  const at = (name: string) => join(directory, name)
  copyFileSync(ours.caFile, at('ca'))
  copyFileSync(client.certFile, at('cert'))
  copyFileSync(client.keyFile, at('key'))
  for (const [name, text] of Object.entries({
    password: OLD,
    admin: 'admin\n',
    new: 'new-one\n',
    keys: keyLines('k1'),
  }))
    writeFileSync(at(name), text)
  const users =
    'user default off ~* &* +@all\nuser admin on >admin ~* &* +@all\nuser imds-fleet on >old-one ~* &* +@all\n'
  /** A server with the set-up of the documents: TLS of a private authority, no default user, its users in a file. */
  const aServer = async (name: string, ...options: string[]) => {
    writeFileSync(at(`${name}.acl`), users)
    const port = String(await freePort())
    const redis = await startRedis(t, [
      ...[
        '--tls-port',
        port,
        '--tls-ca-cert-file',
        ours.caFile,
        '--tls-auth-clients',
        'optional',
        '--aclfile',
        at(`${name}.acl`),
      ],
      ...['--tls-cert-file', server.certFile, '--tls-key-file', server.keyFile, '--appendonly', 'yes', ...options],
    ])
    const client = new Redis(redis.port, { username: 'admin', password: 'admin', retryStrategy: () => 50 })
    client.on('error', () => undefined)
    t.teardown(() => client.disconnect())
    return { redis, client, url: `rediss://127.0.0.1:${port}` }
  }
  const primary = await aServer('primary')
  const follows = [
    '--replicaof',
    '127.0.0.1',
    String(primary.redis.port),
    '--masteruser',
    'admin',
    '--masterauth',
    'admin',
  ]
  const replica = await aServer('replica', ...follows)
  const url = primary.url.replace('//', '//imds-fleet@')
  const open = () =>
    openTestStore(t, {
      url: `redis://admin@127.0.0.1:${primary.redis.port}`,
      region: 'gb1',
      passwordFile: at('admin'),
      recordKeysFile: at('keys'),
    })
  const store = await open()
  const fleet = await startFleet(t, NAMES, store, () => ({
    IMDS_STORE: url,
    IMDS_REDIS_PASSWORD_FILE: at('password'),
    IMDS_REDIS_CA_FILE: at('ca'),
    IMDS_REDIS_CERT_FILE: at('cert'),
    IMDS_REDIS_KEY_FILE: at('key'),
    IMDS_RECORD_KEYS_FILE: at('keys'),
  }))
  const connects = (member: Member) => member.daemon().log.filter(({ msg }) => msg === 'the store is connected').length
  /** Ends all connections of daemons, which connect again with what is in their files. */
  const reconnect = async () => {
    const before = fleet.members.map(connects)
    await primary.client.call('CLIENT', 'KILL', 'USER', 'imds-fleet')
    await until(() => fleet.members.every((member, i) => connects(member) > before[i]!), 'daemons to reconnect', 60_000)
  }

  const ssh = fleet.ssh(async (member, command) => {
    t.match(command, /^umask 077; cat > \S+ && systemctl restart imds$/)
    copyFileSync(at('new'), at('password'))
    await member.restart()
  })
  const rotated = await runExample(t, executed('docs/operations/jobs.md', 'rotate a password'), {
    programs: { ssh },
    env: {
      servers: `${primary.url} ${replica.url}`,
      user: 'imds-fleet',
      admin: at('admin'),
      new: at('new'),
      ca: at('ca'),
    },
  })
  t.equal(rotated.status, 0, rotated.stderr)
  for (const { redis, client } of [replica, primary]) {
    await redis.kill()
    await redis.restart()
    t.equal(await client.call('ACL', 'WHOAMI'), 'admin')
    await t.rejects(client.call('AUTH', 'imds-fleet', 'old-one'), /WRONGPASS/, 'also after a restart')
    t.equal(await client.call('AUTH', 'imds-fleet', 'new-one'), 'OK')
    await client.call('AUTH', 'admin', 'admin')
  }
  await reconnect()

  // An authority: daemons and server trust both, then get the new certificates, then trust only the new one.
  const both = readFileSync(ours.caFile, 'utf8') + readFileSync(next.caFile, 'utf8')
  writeFileSync(at('both'), both)
  copyFileSync(at('both'), at('ca'))
  await primary.client.call('CONFIG', 'SET', 'tls-ca-cert-file', at('both'))
  const [newServer, newClient] = [await next.issue('redis'), await next.issue('client')]
  copyFileSync(newClient.certFile, at('cert'))
  copyFileSync(newClient.keyFile, at('key'))
  await primary.client.call('CONFIG', 'SET', 'tls-cert-file', newServer.certFile, 'tls-key-file', newServer.keyFile)
  await reconnect()
  copyFileSync(next.caFile, at('ca'))
  await primary.client.call('CONFIG', 'SET', 'tls-ca-cert-file', next.caFile)
  await reconnect()

  // Record keys, in the order of docs/encryption.md#change-a-key.
  for (const lines of [keyLines('k2', 'k1'), keyLines('k2')]) {
    writeFileSync(at('keys'), lines)
    for (const member of fleet.members) await member.restart()
    const publisher = await open()
    for (const { id } of await publisher.list()) await publisher.encrypt(id, false)
    await fleet.publish(publisher)
  }
  t.same(await fleet.failures(), [])
})
