/**
 * Programs that others wrote read and verify the identity of a guest: the AWS SDK for JavaScript with openssl, by the
 * recipe of Vault and SPIRE, and Debian's PyJWT with the keys that the issuer publishes.
 */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { KEY_KINDS, makeIdentity, type IdentityFiles } from '../support/fixtures/identity.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { without } from '../support/packages.ts'

const ISSUER = 'https://id.example.com/gb1'
const BASE = '/latest/dynamic/instance-identity'
const PYTHON = '/usr/bin/python3'
/** A guest that fetches a token for an audience, and a verifier that takes the keys of the issuer. */
const LOGIN = `
import json, jwt, sys, urllib.request
metadata, keys, asked, expected = sys.argv[1:]
def fetch(path, method, headers):
    request = urllib.request.Request(metadata + path, method=method, headers=headers)
    return urllib.request.urlopen(request).read().decode()
session = fetch('/latest/api/token', 'PUT', {'X-aws-ec2-metadata-token-ttl-seconds': '60'})
token = fetch('${BASE}/token?audience=' + asked, 'GET', {'X-aws-ec2-metadata-token': session})
key = jwt.PyJWKClient(keys).get_signing_key_from_jwt(token).key
print(json.dumps(jwt.decode(token, key, algorithms=['RS256'], audience=expected, issuer='${ISSUER}')))
`

let directory: string
let daemon: TestDaemon
let endpoint: string
let files: IdentityFiles
t.before(async () => {
  directory = testDirectory(t, { 'login.py': LOGIN, store: {} })
  files = makeIdentity(KEY_KINDS.rsa, directory)
  const store = `file:${join(directory, 'store')}`
  const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }]
  await (await openStore({ url: store })).put(anInstance({ interfaces }))
  daemon = await startDaemon(t, {
    IMDS_STORE: store,
    IMDS_IDENTITY_KEY_FILE: files.keyFile,
    IMDS_IDENTITY_CERT_FILE: files.certificateFile,
    IMDS_IDENTITY_ISSUER: ISSUER,
  })
  endpoint = `http://127.0.0.1:${daemon.guestPort}`
  await until(async () => (await daemon.get('/latest/meta-data/instance-id')).status === 200, 'the instance')
})

t.test(
  'H4: PyJWT accepts a token for its audience, by the published keys',
  { skip: without('python3-jwt', 'python3-cryptography') },
  async (t) => {
    const web = join(directory, 'web')
    execFileSync(process.execPath, [IMDSCTL, 'jwks', web, files.certificateFile, '--issuer', ISSUER])
    const server = createServer((_request, response) => response.end(readFileSync(join(web, 'jwks.json'))))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => server.close())
    const keys = `http://127.0.0.1:${(server.address() as AddressInfo).port}/jwks.json`
    const logIn = (asked: string, expected: string) =>
      run([PYTHON, join(directory, 'login.py'), endpoint, keys, asked, expected])
    const { status, stdout, stderr } = await logIn('vault', 'vault')
    t.equal(status, 0, stderr)
    t.match(JSON.parse(stdout.toString()), { sub: 'srv-abcde', aud: 'vault', account: 'acc-xyz12', zone: 'gb1-a' })
    t.match(await logIn('vault', 'another'), { status: 1, stderr: /InvalidAudienceError/ })
  },
)
