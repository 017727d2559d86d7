/** H4 with the issuer of the region: the documents that imds-api publishes, and the token of a guest. */
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createLocalJWKSet, jwtVerify, type JSONWebKeySet } from 'jose'
import t from 'tap'
import { readRegionIssuer } from '../../src/imds-api/auth/region-issuer.ts'
import { KEY_KINDS, makeIdentity } from '../support/fixtures/identity.ts'
import { aRegion, ONE } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'

const URL = `${BASE_URL}/oidc`
const [rsa, ec] = [makeIdentity(), makeIdentity(KEY_KINDS.ec)]
t.teardown(() => [rsa, ec].forEach(({ directory }) => rmSync(directory, { recursive: true })))

t.test('the keys of all certificates in the file are published, each once', async (t) => {
  const certificateFile = join(testDirectory(t), 'certificates.pem')
  writeFileSync(certificateFile, [rsa, ec, rsa].map(({ certificate }) => certificate).join('\n'))
  const { configuration, keys } = await readRegionIssuer({ url: URL, certificateFile })
  t.match(configuration, { issuer: URL, jwks_uri: `${URL}/jwks.json` })
  t.strictSame(configuration.id_token_signing_alg_values_supported, ['RS256', 'ES256'])
  t.match(keys.keys, [{ kty: 'RSA' }, { kty: 'EC' }])
  t.equal(keys.keys.length, 2)
})

t.test('a certificate of a key that signs no tokens is refused', async (t) => {
  const certificateFile = join(testDirectory(t), 'certificates.pem')
  const other = makeIdentity(['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-384'], testDirectory(t))
  writeFileSync(certificateFile, rsa.certificate + other.certificate)
  await t.rejects(readRegionIssuer({ url: URL, certificateFile }), { message: /^IMDS_API_IDENTITY_CERT_FILE has/ })
})

t.test("a guest's token is verified with what imds-api publishes, and says whose server it is", async (t) => {
  const redis = await startRedis(t)
  const store = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }
  const region = aRegion({ address_pools: { ...aRegion().address_pools, private_ipv4: ['127.0.4.2-127.0.4.9'] } })
  const settings = { IMDS_API_BASE_URL: BASE_URL, IMDS_API_IDENTITY_CERT_FILE: rsa.certificateFile }
  const api = await startImdsApi(t, { ...store, ...settings }, region)
  const daemon = await startDaemon(t, {
    ...store,
    IMDS_HYPERVISOR: 'hv-3',
    IMDS_IDENTITY_KEY_FILE: rsa.keyFile,
    IMDS_IDENTITY_CERT_FILE: rsa.certificateFile,
    IMDS_IDENTITY_ISSUER: URL,
  })
  // hv-3 is the only hypervisor of gb1-b
  const { body } = await api.call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-b' })
  const server = body as { id: string; interfaces: readonly [{ ipv4_address: string }] }
  const curl = async (...args: string[]) => {
    const from = ['--interface', server.interfaces[0].ipv4_address, '-s', '-w', ' %{http_code}']
    const path = `http://127.0.0.1:${daemon.guestPort}/latest/${args.pop()!}`
    return (await run(['curl', ...from, ...args, path])).stdout.toString()
  }
  await until(async () => (await curl('meta-data/instance-id')) === `${server.id} 200`, 'the server')
  const session = (await curl('-X', 'PUT', '-H', 'X-aws-ec2-metadata-token-ttl-seconds: 60', 'api/token')).split(' ')[0]
  const header = `X-aws-ec2-metadata-token: ${session!}`
  const [jwt, status] = (await curl('-H', header, 'dynamic/instance-identity/token?audience=vault')).split(' ')
  t.equal(status, '200')

  const published = await fetch(`${api.baseUrl}/oidc/jwks.json`)
  t.equal(published.headers.get('cache-control'), 'public, max-age=300')
  const keys = createLocalJWKSet((await published.json()) as JSONWebKeySet)
  const { payload } = await jwtVerify(jwt!, keys, { issuer: URL, audience: 'vault' })
  t.match(payload, { sub: server.id, account: ONE })
  const discovery = `${api.baseUrl}/oidc/.well-known/openid-configuration`
  const found = await fetch(discovery)
  t.match(await found.json(), { issuer: URL, jwks_uri: `${URL}/jwks.json` })
  const again = await fetch(discovery, { headers: { 'If-None-Match': found.headers.get('etag')! } })
  t.equal(again.status, 304)
})
