/** Redis over TLS: a private authority, client certificates, and the errors about them. */
import { X509Certificate } from 'node:crypto'
import { copyFileSync, readFileSync, renameSync } from 'node:fs'
import t, { type Test } from 'tap'
import { must } from '../support/programs/processes.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { openStore } from '../../src/store/open.ts'
import { freePort, startRedis, type TestRedis } from '../support/redis/redis.ts'
import {
  aDaemon,
  aStore,
  connected,
  guestsWithoutPause,
  logsReason,
  reasons,
  record,
  serves,
} from '../support/redis/shapes.ts'
import { anAuthority, type Authority, type Certificate } from '../support/redis/tls.ts'
import { testDirectory } from '../support/test-directory.ts'

interface Secure {
  readonly redis: TestRedis
  readonly url: string
  readonly directory: string
  readonly ours: Authority
  readonly server: Certificate
}

/** A redis-server with a TLS port that requires client certificates, and a plain port for the test itself. */
async function aSecureRedis(t: Test): Promise<Secure> {
  const directory = testDirectory(t, {})
  const ours = await anAuthority(directory, 'ours')
  const server = await ours.issue('redis')
  const port = String(await freePort())
  const redis = await startRedis(t, [
    '--tls-port',
    port,
    '--tls-ca-cert-file',
    ours.caFile,
    '--tls-cert-file',
    server.certFile,
    '--tls-key-file',
    server.keyFile,
  ])
  return { redis, url: `rediss://127.0.0.1:${port}`, directory, ours, server }
}

/** Makes the server use a certificate. */
const useCertificate = (redis: TestRedis, { certFile, keyFile }: Certificate) =>
  redis.client.call('CONFIG', 'SET', 'tls-cert-file', certFile, 'tls-key-file', keyFile)

t.test('with a private authority and a client certificate, daemon, library and imdsctl work as usual', async (t) => {
  const { url, ours, server } = await aSecureRedis(t)
  const files = { caFile: ours.caFile, ...(await ours.issue('client')) }
  const daemon = await aDaemon(t, url, files)
  const store = await aStore(t, url, files)
  await store.put(record(1))
  await serves(daemon, 1)
  const days = (new X509Certificate(readFileSync(server.certFile)).validToDate.getTime() - Date.now()) / 86_400_000
  t.equal((await daemon.condition('store-certificate')) !== undefined, days < 14)
  await store.put(record(2))
  await serves(daemon, 2)
  const printed = await must([
    process.execPath,
    IMDSCTL,
    '--store',
    url,
    '--region',
    'gb1',
    '--ca-file',
    files.caFile,
    '--cert-file',
    files.certFile,
    '--key-file',
    files.keyFile,
    'get',
    'srv-n1',
  ])
  t.match(JSON.parse(printed.toString()), { revision: 2 })
})

t.test('the error for a server without TLS, or only with TLS, names the URL to use', async (t) => {
  const { redis, url } = await aSecureRedis(t)
  const open = (url: string) =>
    openStore({ url, region: 'gb1' }).then(
      () => 'opened',
      (error: unknown) => String(error),
    )
  t.match(
    await open(redis.url.replace('redis:', 'rediss:')),
    /no TLS handshake within 5 s: the server does not answer, or does not speak TLS on this port \(then its URL must begin with redis, not with rediss\)/,
  )
  t.match(
    await open(url.replace('rediss:', 'redis:')),
    /the server closed the connection: if it speaks TLS on this port, its URL must begin with rediss \(/,
  )
})

t.test('the daemon logs a wrong authority and connects with the right one without a restart', async (t) => {
  const { url, directory, ours } = await aSecureRedis(t)
  const client = await ours.issue('client')
  const foreign = await anAuthority(directory, 'foreign')
  const caFile = `${directory}/ca.pem`
  copyFileSync(foreign.caFile, caFile)
  const daemon = await aDaemon(t, url, { caFile, ...client })
  await t.rejects(
    aStore(t, url, { caFile, ...client }),
    /cannot use the store: the server's certificate is signed by an authority that is not trusted/,
  )
  await logsReason(daemon, /^the server's certificate is signed by an authority that is not trusted/)
  copyFileSync(ours.caFile, `${caFile}.next`) // atomically: half a file would be another error
  renameSync(`${caFile}.next`, caFile)
  await connected(daemon)
  t.equal(reasons(daemon).length, 1, 'it is logged once')
})

t.test('the daemon logs a missing or wrong client certificate and uses a good one without a restart', async (t) => {
  const { redis, url, directory, ours } = await aSecureRedis(t)
  const bare = await aDaemon(t, url, { caFile: ours.caFile })
  await logsReason(bare, /^the server (probably )?requires a client certificate/)
  const foreign = await (await anAuthority(directory, 'foreign')).issue('client')
  const files = { certFile: `${directory}/client.pem`, keyFile: `${directory}/client.key` }
  copyFileSync(foreign.certFile, files.certFile)
  copyFileSync(foreign.keyFile, files.keyFile)
  const daemon = await aDaemon(t, url, { caFile: ours.caFile, ...files })
  await logsReason(daemon, /^the server (probably )?refuses our certificate/)
  const good = await ours.issue('client')
  copyFileSync(good.certFile, files.certFile)
  copyFileSync(good.keyFile, files.keyFile)
  await connected(daemon)
  await redis.client.call('CONFIG', 'SET', 'tls-auth-clients', 'no')
  await connected(bare)
  for (const one of [bare, daemon])
    t.match(JSON.parse((await one.operator('/readyz')).body.toString()), { connected: true })
})

t.test('with an expired server certificate guests are served, and the cause is logged once', async (t) => {
  const { redis, url, ours, server } = await aSecureRedis(t)
  const files = { caFile: ours.caFile, ...(await ours.issue('client')) }
  const daemon = await aDaemon(t, url, files)
  const store = await aStore(t, redis.url)
  await store.put(record(1))
  await serves(daemon, 1)
  const guests = guestsWithoutPause(t, daemon)
  await useCertificate(redis, await ours.issue('expired', -1))
  await redis.client.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  await logsReason(daemon, /^the server's certificate has expired/)
  await store.put(record(2))
  await useCertificate(redis, server)
  await serves(daemon, 2)
  t.same(await guests.stop(), [])
  t.equal(reasons(daemon).filter((reason) => reason.includes('has expired')).length, 1)
})
