/** H4 with the issuer of an account: its resource, its public documents, and the tokens of a guest. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createLocalJWKSet, decodeProtectedHeader, jwtVerify, type JSONWebKeySet } from 'jose'
import t from 'tap'
import { buildTokenSigner } from '../../src/identity/signer.ts'
import { parseAccountKey, signingKey } from '../../src/identity/account-keys.ts'
import { parse } from '../../src/metadata/record.ts'
import type { Instance } from '../../src/metadata/instance.ts'
import { composeMany } from '../../src/imds-api/publish/compose.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { aRegion, ONE, TWO } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { anApi, startImdsApi, type Method } from '../support/programs/api.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'

const PATH = '/1.0/account/identity'
const ISSUER = `${BASE_URL}/oidc/${ONE}`

interface Body {
  readonly id: string
  readonly created_at: string
  readonly keys: readonly { readonly kid: string; readonly signs_from: string; readonly retires_at: string | null }[]
}

const api = await anApi(t, { store: { url: 'redis:', recordKeysFile: '/keys' } })
const { db } = api.database
const call = async (method: Method, path: string = PATH, body?: object) => {
  const { status, body: found } = await api.call(method, path, body)
  return { status, body: found as Body }
}
const document = async (name: string, account: string = ONE) => {
  const { statusCode, headers, body } = await api.server.inject(`/oidc/${account}/${name}`)
  return { status: statusCode, headers, body: JSON.parse(body) as object }
}
const jwks = async () => createLocalJWKSet((await document('jwks.json')).body as JSONWebKeySet)

/** The record of a server, as it would be published. */
async function recordOf(id: string): Promise<Instance> {
  const parsed = parse((await composeMany(db, [id]))[0]!.record)
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  return parsed.value
}

/** A token that a daemon makes of a record at a time. */
async function tokenOf(instance: Instance, nowMs: number): Promise<string> {
  const { identity } = instance
  const key = parseAccountKey(signingKey(identity!.keys, nowMs))
  return (await buildTokenSigner(key)).mintToken(identity!, instance, 'vault', nowMs)
}
const verify = async (token: string, at = Date.now()) =>
  jwtVerify(token, await jwks(), { issuer: ISSUER, audience: 'vault', currentDate: new Date(at) })

const { id } = (await call('POST', '/1.0/servers', { image: 'img-deb12' })).body

t.test('an account has no identity until it makes one, and no other account has it', async (t) => {
  t.match(await call('GET'), { status: 404, body: { errors: [/make one by PUT/] } })
  t.match(await call('POST', `${PATH}/rotate`), { status: 404 })
  t.match(await call('DELETE'), { status: 404 })
  t.match(await document('jwks.json'), { status: 404 })
  t.match(await call('PUT', PATH, {}), { status: 422, body: { errors: ['audiences is missing'] } })
  for (const wrong of [
    { audiences: [] },
    { audiences: ['a b'] },
    { audiences: ['vault'], lifetime_seconds: 59 },
    { audiences: ['vault'], lifetime_seconds: 3601 },
    { audiences: ['vault'], algorithm: 'HS256' },
    { audiences: Array.from({ length: 17 }, (_, i) => String(i)) },
  ])
    t.match(await call('PUT', PATH, wrong), { status: 422 }, JSON.stringify(wrong))
  const { status, body } = await call('PUT', PATH, { audiences: ['vault'] })
  const { kid, signs_from } = body.keys[0]!
  const made = {
    issuer: ISSUER,
    status: 'active',
    algorithm: 'ES256',
    audiences: ['vault'],
    lifetime_seconds: 600,
    created_at: body.created_at,
    keys: [{ kid, algorithm: 'ES256', signs_from, retires_at: null }],
  }
  t.strictSame({ status, body }, { status: 200, body: made })
  t.strictSame(await call('GET'), { status: 200, body: made })
  t.match(await api.call('GET', PATH, undefined, TWO), { status: 404 })
  t.match(await document('jwks.json', TWO), { status: 404 })
  t.match(await document('jwks.json', 'x'.repeat(60)), { status: 404 })
  t.match(await document('.well-known/openid-configuration'), {
    status: 200,
    headers: { 'cache-control': 'public, max-age=300' },
    body: { issuer: ISSUER, jwks_uri: `${ISSUER}/jwks.json`, id_token_signing_alg_values_supported: ['ES256'] },
  })
  const keys = (await document('jwks.json')).body
  t.match(keys, { keys: [{ kty: 'EC', kid, alg: 'ES256', use: 'sig' }] })
  t.notMatch(JSON.stringify([keys, api.audit]), /"d":|PRIVATE/)
})

t.test('each change is in the next revision of the records; without a change there is none', async (t) => {
  const before = await recordOf(id)
  t.match(before.identity, { issuer: ISSUER, audiences: ['vault'], lifetimeSeconds: 600, keys: [{}] })
  await call('PUT', PATH, { audiences: ['vault', 'vault'], status: 'active' })
  t.strictSame(await recordOf(id), before)
  await call('PUT', PATH, { audiences: ['vault', 'b'], lifetime_seconds: 60 })
  t.match(await recordOf(id), {
    revision: before.revision + 1,
    identity: { audiences: ['vault', 'b'], lifetimeSeconds: 60, keys: before.identity!.keys },
  })
  t.match(await call('PUT', PATH, { status: 'paused' }), { status: 200, body: { status: 'paused' } })
  t.match(await recordOf(id), { revision: before.revision + 2 })
  t.strictSame((await recordOf(id)).identity!.keys, [], 'no server can make a token')
  t.match((await document('jwks.json')).body, { keys: [{}] }, 'tokens that were made remain valid')
  await call('PUT', PATH, { status: 'active' })
  t.match(await recordOf(id), { revision: before.revision + 3, identity: { keys: before.identity!.keys } })
  const { id: later } = (await call('POST', '/1.0/servers', { image: 'img-deb12' })).body
  t.strictSame((await recordOf(later)).identity, (await recordOf(id)).identity, 'a new server has it too')
  const { id: other } = (await api.call('POST', '/1.0/servers', { image: 'img-deb12' }, TWO)).body as Body
  t.equal((await recordOf(other)).identity, undefined, 'a server of another account has not')
})

t.test('tokens are accepted before, during and after a rotation, and a key that retired is not', async (t) => {
  const [present] = (await call('GET')).body.keys
  const oldToken = await tokenOf(await recordOf(id), Date.now())
  await verify(oldToken)
  await call('PUT', PATH, { algorithm: 'RS256' })
  await verify(await tokenOf(await recordOf(id), Date.now()))
  const { status, body } = await call('POST', `${PATH}/rotate`)
  t.equal(status, 200)
  t.match(body.keys, [
    { kid: present!.kid, algorithm: 'ES256' },
    { algorithm: 'RS256', retires_at: null },
  ])
  const record = await recordOf(id)
  const signsAt = Date.parse(body.keys[1]!.signs_from)
  t.ok(signsAt - Date.now() > 500_000, 'verifiers have time to read the new key')
  t.ok(Date.parse(body.keys[0]!.retires_at!) - signsAt >= 24 * 3_600_000)
  const [during, after] = [await tokenOf(record, Date.now()), await tokenOf(record, signsAt + 1_000)]
  t.strictSame(
    [oldToken, during, after].map((token) => decodeProtectedHeader(token).kid),
    [present!.kid, present!.kid, body.keys[1]!.kid],
  )
  await verify(oldToken)
  await verify(during)
  await verify(after, signsAt + 1_000)
  t.match(await call('POST', `${PATH}/rotate`), { status: 409, body: { errors: [/ends at .*rotate after that/] } })

  await db
    .updateTable('identity_keys')
    .set({ retires_at: new Date(0) })
    .where('kid', '=', present!.kid)
    .execute()
  await t.rejects(verify(during), { code: 'ERR_JWKS_NO_MATCHING_KEY' })
  await verify(after, signsAt + 1_000)
  const again = await call('POST', `${PATH}/rotate`)
  t.equal(again.status, 200)
  t.equal(again.body.keys.length, 2)
  t.notOk(
    again.body.keys.some(({ kid }) => kid === present!.kid),
    'the retired key is deleted',
  )
})

t.test('a destroyed identity leaves the records and its keys the public documents', async (t) => {
  const { revision } = await recordOf(id)
  t.match(await call('DELETE'), { status: 200, body: { issuer: ISSUER } })
  t.match(await document('jwks.json'), { status: 404 })
  t.match(await recordOf(id), { revision: revision + 1 })
  t.equal((await recordOf(id)).identity, undefined)
  t.equal((await db.selectFrom('identity_keys').select('kid').execute()).length, 0)
})

t.test('a request for a new identity chooses neither its issuer nor its account', async (t) => {
  const others = [
    { issuer: 'https://other.example.com' },
    { account_id: TWO },
    { created_at: '2020-01-01' },
    { name: 'x' },
  ]
  for (const other of others) {
    const { status, body } = await call('PUT', PATH, { audiences: ['vault'], ...other })
    t.match({ status, body }, { status: 200, body: { issuer: ISSUER } }, JSON.stringify(other))
    t.ok(Date.parse(body.created_at) > Date.now() - 3_600_000)
    t.match(await api.call('GET', PATH, undefined, TWO), { status: 404 })
    t.match(await call('DELETE'), { status: 200 })
  }
})

t.test('a region without encrypted records refuses an identity, and names the remedy', async (t) => {
  const plain = await anApi(t)
  t.match(await plain.call('PUT', PATH, { audiences: ['vault'] }), {
    status: 422,
    body: { errors: [/not encrypted.*IMDS_RECORD_KEYS_FILE/] },
  })
})

t.test("a guest's token is verified with what imds-api publishes, until the account pauses its issuer", async (t) => {
  const redis = await startRedis(t)
  const recordKeys = join(testDirectory(t), 'record-keys')
  writeFileSync(recordKeys, keyLines('k1'), { mode: 0o600 })
  const store = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_RECORD_KEYS_FILE: recordKeys }
  const region = aRegion({ address_pools: { ...aRegion().address_pools, private_ipv4: ['127.0.4.2-127.0.4.9'] } })
  const real = await startImdsApi(t, { ...store, IMDS_API_BASE_URL: BASE_URL }, region)
  const daemon = await startDaemon(t, { ...store, IMDS_HYPERVISOR: 'hv-3' })
  const send = real.call
  t.match(await send('PUT', 'account/identity', { audiences: ['vault'], lifetime_seconds: 300 }), { status: 200 })
  // hv-3 is the only hypervisor of gb1-b
  const { body } = await send('POST', 'servers', { image: 'img-deb12', zone: 'gb1-b' })
  const server = body as { id: string; interfaces: readonly [{ ipv4_address: string }] }
  const curl = async (...args: string[]) => {
    const from = ['--interface', server.interfaces[0].ipv4_address, '-s', '-w', ' %{http_code}']
    const path = `http://127.0.0.1:${daemon.guestPort}/latest/${args.pop()!}`
    return (await run(['curl', ...from, ...args, path])).stdout.toString()
  }
  await until(async () => (await curl('meta-data/instance-id')) === `${server.id} 200`, 'the server')
  const session = (await curl('-X', 'PUT', '-H', 'X-aws-ec2-metadata-token-ttl-seconds: 60', 'api/token')).split(' ')[0]
  const asked = (audience: string) =>
    curl('-H', `X-aws-ec2-metadata-token: ${session!}`, `dynamic/instance-identity/token?audience=${audience}`)
  const [jwt, status] = (await asked('vault')).split(' ')
  t.equal(status, '200')
  const published = await fetch(`${real.baseUrl}/oidc/${ONE}/jwks.json`)
  const keys = createLocalJWKSet((await published.json()) as JSONWebKeySet)
  const { payload } = await jwtVerify(jwt!, keys, { issuer: ISSUER, audience: 'vault' })
  t.match(payload, { sub: server.id, account: ONE })
  t.equal(payload.exp! - payload.iat!, 300)
  t.match(await asked('other'), / 400$/)
  t.match(await send('PUT', 'account/identity', { status: 'paused' }), { status: 200 })
  await until(async () => (await asked('vault')).endsWith(' 404'), 'no more tokens')
  t.notMatch(JSON.stringify([daemon.log, real.log]), 'PRIVATE KEY')
})
