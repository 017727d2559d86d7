/**
 * Certificates and record keys of a whole fleet change, as docs/operations/jobs.md and docs/encryption.md say, while guests
 * ask without a pause.
 */
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { until } from '../support/programs/daemon.ts'
import { startFleet, type Member } from '../support/redis/fleet.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

t.test('certificates and record keys change, and no request fails', async (t) => {
  const directory = testDirectory(t, {})
  const [ours, next] = [await anAuthority(directory, 'ours'), await anAuthority(directory, 'next')]
  const [server, client] = [await ours.issue('redis'), await ours.issue('client')]
  const at = (name: string) => join(directory, name)
  copyFileSync(ours.caFile, at('ca'))
  copyFileSync(client.certFile, at('cert'))
  copyFileSync(client.keyFile, at('key'))
  writeFileSync(at('keys'), keyLines('k1'))
  const port = String(await freePort())
  const redis = await startRedis(t, [
    ...['--tls-port', port, '--tls-ca-cert-file', ours.caFile, '--tls-auth-clients', 'optional'],
    ...['--tls-cert-file', server.certFile, '--tls-key-file', server.keyFile],
  ])
  const open = () => openTestStore(t, { url: redis.url, region: 'gb1', recordKeysFile: at('keys') })
  const fleet = await startFleet(t, ['hv1', 'hv2'], await open(), () => ({
    IMDS_STORE: `rediss://127.0.0.1:${port}`,
    IMDS_REDIS_CA_FILE: at('ca'),
    IMDS_REDIS_CERT_FILE: at('cert'),
    IMDS_REDIS_KEY_FILE: at('key'),
    IMDS_RECORD_KEYS_FILE: at('keys'),
  }))
  const connects = (member: Member) => member.daemon().log.filter(({ msg }) => msg === 'the store is connected').length
  /** Ends all connections of daemons, which connect again with what is in their files. */
  const reconnect = async () => {
    const before = fleet.members.map(connects)
    for (const type of ['normal', 'pubsub']) await redis.client.call('CLIENT', 'KILL', 'TYPE', type)
    await until(() => fleet.members.every((member, i) => connects(member) > before[i]!), 'daemons to reconnect', 60_000)
  }

  // An authority: daemons and server trust both, then get the new certificates, then trust only the new one.
  const both = readFileSync(ours.caFile, 'utf8') + readFileSync(next.caFile, 'utf8')
  writeFileSync(at('both'), both)
  copyFileSync(at('both'), at('ca'))
  await redis.client.call('CONFIG', 'SET', 'tls-ca-cert-file', at('both'))
  const [newServer, newClient] = [await next.issue('redis'), await next.issue('client')]
  copyFileSync(newClient.certFile, at('cert'))
  copyFileSync(newClient.keyFile, at('key'))
  await redis.client.call('CONFIG', 'SET', 'tls-cert-file', newServer.certFile, 'tls-key-file', newServer.keyFile)
  await reconnect()
  copyFileSync(next.caFile, at('ca'))
  await redis.client.call('CONFIG', 'SET', 'tls-ca-cert-file', next.caFile)
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
