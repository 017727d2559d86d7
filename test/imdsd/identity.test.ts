/**
 * H3 and H4 with the daemon and imdsctl as processes: the keys as files, their faults, the documents of the issuer, and
 * the rotation of a key. test/contract/identity.test.ts has the rules.
 */
import { spawnSync } from 'node:child_process'
import { X509Certificate } from 'node:crypto'
import { readFileSync, statSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { createLocalJWKSet, jwtVerify, type JSONWebKeySet } from 'jose'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { KEY_KINDS, makeCertificate, makeIdentity, type IdentityFiles } from '../support/fixtures/identity.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { exchange } from '../support/fixtures/socket.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const ISSUER = 'https://id.example.com/gb1'
const BASE = '/latest/dynamic/instance-identity'
const ID = '/latest/meta-data/instance-id'

let store: string
t.before(async () => {
  store = `file:${testDirectory(t)}`
  const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }]
  await (await openStore({ url: store })).put(anInstance({ interfaces }))
})

const run = (...args: string[]) => imdsctl(args)

const settingsOf = ({ keyFile, certificateFile }: Pick<IdentityFiles, 'keyFile' | 'certificateFile'>) => ({
  IMDS_IDENTITY_KEY_FILE: keyFile,
  IMDS_IDENTITY_CERT_FILE: certificateFile,
})

async function aDaemon(t: Test, env: Record<string, string>): Promise<TestDaemon> {
  const daemon = await startDaemon(t, { IMDS_STORE: store, ...env })
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
  return daemon
}

async function tokenOf({ guestPort }: TestDaemon): Promise<string> {
  const put = 'PUT /latest/api/token HTTP/1.0\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n'
  const session = (await exchange(guestPort, put)).body
  const get = `GET ${BASE}/token?audience=vault HTTP/1.0\r\nX-aws-ec2-metadata-token: ${session}\r\n\r\n`
  return (await exchange(guestPort, get)).body
}

t.test('H3: openssl verifies, by the documented commands, what a key signs', async (t) => {
  const directory = testDirectory(t)
  const files = makeIdentity(KEY_KINDS.rsa, directory)
  const daemon = await aDaemon(t, settingsOf(files))
  const recipe = executed('docs/guests.md', 'identity document')
    .replaceAll('169.254.169.254', `127.0.0.1:${daemon.guestPort}`)
    .replaceAll('identity-cert.pem', files.certificateFile)
  const { status, stdout } = spawnSync('sh', ['-euc', recipe], { encoding: 'utf8', cwd: directory })
  t.equal(status, 0)
  t.match(stdout, /^Verified OK\n\{\n {2}"accountId" : "acc-xyz12"/)
  t.equal((await daemon.get(`${BASE}/token?audience=a`)).status, 404, 'there is no issuer')
  t.equal(
    await daemon.metric('imds_requests_total{route="/{version}/dynamic",method="GET",status="200",reason="served"}'),
    3,
  )
})

t.test('H4: a token is accepted before, during and after the rotation of a key', async (t) => {
  const directory = testDirectory(t, { old: {}, next: {} })
  const web = join(directory, 'web')
  const old = makeIdentity(KEY_KINDS.rsa, join(directory, 'old'))
  const next = makeIdentity(KEY_KINDS.ec, join(directory, 'next'))
  const publish = async (...identities: IdentityFiles[]) => {
    const files = identities.map(({ certificateFile }) => certificateFile)
    t.match(await run('jwks', web, ...files, '--issuer', ISSUER), { status: 0, stderr: '' })
    return createLocalJWKSet(JSON.parse(readFileSync(join(web, 'jwks.json'), 'utf8')) as JSONWebKeySet)
  }
  const first = await publish(old)
  const before = await aDaemon(t, { ...settingsOf(old), IMDS_IDENTITY_ISSUER: ISSUER })
  const oldToken = await tokenOf(before)
  const both = await publish(old, next)
  const after = await aDaemon(t, { ...settingsOf(next), IMDS_IDENTITY_ISSUER: ISSUER })
  const newToken = await tokenOf(after)
  t.equal((await after.get(`${BASE}/signature`)).status, 404, 'a key of P-256 signs no documents')
  const verify = (token: string, keys: Awaited<ReturnType<typeof publish>>) =>
    jwtVerify(token, keys, { issuer: ISSUER, audience: 'vault' })
  t.match(await verify(oldToken, first), { payload: { sub: 'srv-abcde' }, protectedHeader: { alg: 'RS256' } })
  t.match(await verify(oldToken, both), { payload: { sub: 'srv-abcde' } })
  t.match(await verify(newToken, both), { payload: { sub: 'srv-abcde' }, protectedHeader: { alg: 'ES256' } })
  await t.rejects(verify(oldToken, await publish(next)), { code: 'ERR_JWKS_NO_MATCHING_KEY' })
  t.match(JSON.parse(readFileSync(join(web, '.well-known/openid-configuration'), 'utf8')), {
    issuer: ISSUER,
    jwks_uri: `${ISSUER}/jwks.json`,
    id_token_signing_alg_values_supported: ['ES256'],
  })
  t.equal(statSync(join(web, 'jwks.json')).mode & 0o777, 0o644)
})

t.test('H4: the documented commands make a key, publish an issuer, and fetch a token', async (t) => {
  const directory = testDirectory(t, { bin: { imdsctl: `#!/bin/sh\nexec ${process.execPath} ${IMDSCTL} "$@"\n` } })
  const shell = (script: string) => {
    const env = { ...programEnvironment(), PATH: `${join(directory, 'bin')}:${String(process.env['PATH'])}` }
    const { status, stdout, stderr } = spawnSync('sh', ['-euc', script], { encoding: 'utf8', cwd: directory, env })
    t.same([status, stderr], [0, ''], script)
    return stdout
  }
  shell(`chmod +x bin/imdsctl`)
  const commands = executed('docs/configuration.md', 'identity keys').replaceAll(/ \/(etc|srv)/g, ` ${directory}/$1`)
  shell(`mkdir -p etc/imds; { ${commands.replace('imdsctl', '} 2>/dev/null; imdsctl')}`)
  const [keyFile, certificateFile] = ['identity-key.pem', 'identity-cert.pem'].map((name) =>
    join(directory, 'etc/imds/identity', name),
  ) as [string, string]
  t.equal(statSync(keyFile).mode & 0o777, 0o600)
  t.equal(statSync(join(directory, 'etc/imds/identity')).mode & 0o777, 0o700)
  t.equal(new X509Certificate(readFileSync(certificateFile)).subject, `CN=imds ${hostname()}`)
  const daemon = await aDaemon(t, { ...settingsOf({ keyFile, certificateFile }), IMDS_IDENTITY_ISSUER: ISSUER })
  const place = `127.0.0.1:${daemon.guestPort}`
  const token = shell(executed('docs/guests.md', 'identity token').replaceAll('169.254.169.254', place))
  const keys = JSON.parse(readFileSync(join(directory, 'srv/www/gb1/jwks.json'), 'utf8')) as JSONWebKeySet
  const expected = { issuer: ISSUER, audience: 'https://vault.example.com' }
  t.match(await jwtVerify(token, createLocalJWKSet(keys), expected), { payload: { sub: 'srv-abcde' } })
})

t.test('H4: wrong input to imdsctl jwks has a message', async (t) => {
  const directory = testDirectory(t, { 'no.pem': 'S3CRET' })
  const jwks = (...args: string[]) => run('jwks', directory, ...args)
  t.match(await jwks('--issuer', ISSUER), { status: 64, stderr: /missing required argument 'path'/ })
  t.match(await jwks(join(directory, 'no.pem')), { status: 64, stderr: /--issuer must be an https URL/ })
  t.match(await jwks(join(directory, 'none.pem'), '--issuer', ISSUER), { status: 66, stderr: /cannot be read: ENOENT/ })
  const wrong = await jwks(join(directory, 'no.pem'), '--issuer', ISSUER)
  t.match(wrong, { status: 65, stderr: /has no certificate or key/ })
  t.notMatch(wrong.stderr, 'S3CRET')
})

t.test('a certificate that has expired is a warning: guests are served', async (t) => {
  const files = makeIdentity(KEY_KINDS.rsa, testDirectory(t))
  const certificateFile = makeCertificate(files, 'past.pem', -1)
  const daemon = await aDaemon(t, settingsOf({ ...files, certificateFile }))
  t.match(await daemon.condition('identity-invalid'), /expired .* ago/)
})
