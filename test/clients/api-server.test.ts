/**
 * A server that calls the API as itself: by the documented commands in a guest behind the firewall, by openid-client, and
 * by Debian's Authlib.
 */
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import * as openid from 'openid-client'
import t from 'tap'
import { JWT_BEARER } from '../../src/imds-api/auth/grants/jwt-bearer.ts'
import { KEY_KINDS, makeIdentity } from '../support/fixtures/identity.ts'
import { aRegion } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { startFirewallHost } from '../support/netns/firewall-host.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { without } from '../support/packages.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { must, run, startChild } from '../support/programs/processes.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { executed, ROOT } from '../tools/documents.ts'

/** Debian's packages are for Debian's Python. */
const PYTHON = '/usr/bin/python3'
const skip = withoutNamespaces() || without('python3-authlib', 'jq', 'nft')
const [NAME, PORT] = [new URL(BASE_URL).hostname, 8443]
/** Of the first guest of the host. */
const ADDRESS = '10.88.1.2'

/** The proxy in front of imds-api, in the namespace of a guest. */
const PROXY = `
const [, cert, key, path] = process.argv
const { readFileSync: read } = require('node:fs')
require('node:tls').createServer({ cert: read(cert), key: read(key) }, (socket) => {
  const api = require('node:net').connect(path)
  socket.pipe(api).pipe(socket)
  for (const one of [socket, api]) one.on('error', () => [socket, api].forEach((end) => end.destroy()))
}).listen(${PORT}, '127.0.0.1', () => console.log('up'))
process.stdin.resume().on('end', () => process.exit())`

const AUTHLIB = `
import sys
from authlib.integrations.requests_client import OAuth2Session
url, client, assertion = sys.argv[1:]
session = OAuth2Session(client, token_endpoint_auth_method='none')
token = session.fetch_token(url + '/token', grant_type='${JWT_BEARER}', assertion=assertion)
print(token['token_type'], session.get(url + '/1.0/account').status_code)
`

interface Body {
  readonly id: string
  readonly interfaces: readonly [{ readonly id: string; readonly mac_address: string }]
  readonly interface: { readonly id: string } | null
}

t.test(
  'a server behind the firewall gets tokens of a client that trusts it, by what others wrote',
  { skip },
  async (t) => {
    const directory = shortDirectory(t)
    const { directory: keys, keyFile, certificateFile } = makeIdentity()
    t.teardown(() => rmSync(keys, { recursive: true }))
    const socket = join(directory, 'api.sock')
    const store = `file:${join(directory, 'store')}`
    const pools = { ...aRegion().address_pools, private_ipv4: [`${ADDRESS}-${ADDRESS}`] }
    const region = aRegion({ address_pools: pools, hypervisors: [{ name: 'hv-1', zone: 'gb1-a', ram: 65_536 }] })
    const api = await startImdsApi(
      t,
      {
        IMDS_STORE: store,
        IMDS_API_LISTEN: `127.0.0.1:0,unix:${socket}`,
        IMDS_API_BASE_URL: BASE_URL,
        IMDS_API_IDENTITY_CERT_FILE: certificateFile,
      },
      region,
    )
    const call = async (method: 'GET' | 'POST', path: string, body?: object) =>
      (await api.call(method, path, body)).body as Body
    const { id: group } = await call('POST', 'server_groups', { name: 'front' })
    const { id: client } = await call('POST', 'api_clients', { name: 'failover', trusted_servers: group })
    const { id: cloudIp } = await call('POST', 'cloud_ips', { name: 'www' })
    const server = await call('POST', 'servers', { image: 'img-deb12', server_groups: [group] })
    const [{ id: interfaceId, mac_address: mac }] = server.interfaces

    const host = await startFirewallHost(t, {
      IMDS_STORE: store,
      IMDS_IDENTITY_KEY_FILE: keyFile,
      IMDS_IDENTITY_CERT_FILE: certificateFile,
      IMDS_IDENTITY_ISSUER: `${BASE_URL}/oidc`,
    })
    const guest = await host.addGuest('front', `tap-${interfaceId}`)
    await must([...guest.within, 'ip', 'link', 'set', 'eth0', 'address', mac])
    await host.startFirewall()
    const tls = makeIdentity([...KEY_KINDS.ec, '-addext', `subjectAltName=DNS:${NAME}`])
    t.teardown(() => rmSync(tls.directory, { recursive: true }))
    const files = [tls.certificateFile, tls.keyFile, socket]
    const proxy = await startChild([...guest.within, process.execPath, '-e', PROXY, ...files])
    t.teardown(() => proxy.stop())
    writeFileSync(
      join(directory, '.curlrc'),
      `cacert = "${tls.certificateFile}"\nconnect-to = "${NAME}:443:127.0.0.1:${PORT}"\n`,
    )
    const shell = async (...lines: string[]) => {
      const begin = `cd ${directory}; api=${BASE_URL} url=${BASE_URL} client=${client}`
      const command = ['env', `HOME=${directory}`, 'bash', '-euc', [begin, ...lines].join('\n')]
      const { status, stdout, stderr } = await run([...guest.within, ...command])
      t.equal(status, 0, stderr)
      return stdout.toString().trim()
    }
    await until(
      async () =>
        (await run([...guest.within, 'curl', '-sf', 'http://169.254.169.254/latest/meta-data/'])).status === 0,
      'the guest to be served',
    )

    await t.test('the recipe maps a cloud IP to the server, also when it is mapped already', async (t) => {
      const functions = [`. ${ROOT}deploy/client/api.sh`, executed('docs/api.md', 'recipe server')]
      for (let i = 0; i < 2; i++) await shell(...functions, `take_over ${cloudIp} > /dev/null`)
      t.match(await call('GET', `cloud_ips/${cloudIp}`), { interface: { id: interfaceId } })
    })

    const assertion = () =>
      shell(
        'imds=http://169.254.169.254/latest',
        "session=$(curl -sX PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $imds/api/token)",
        'curl -s -H "X-aws-ec2-metadata-token: $session" "$imds/dynamic/instance-identity/token?audience=$api"',
      )
    const listening = api.baseUrl

    await t.test('openid-client', async (t) => {
      const metadata = { issuer: BASE_URL, token_endpoint: `${listening}/token` }
      const configuration = new openid.Configuration(metadata, client, undefined, openid.None())
      // eslint-disable-next-line @typescript-eslint/no-deprecated -- marked so that nobody uses it beyond tests
      openid.allowInsecureRequests(configuration)
      const granted = await openid.genericGrantRequest(configuration, JWT_BEARER, { assertion: await assertion() })
      t.equal(granted.token_type, 'bearer')
    })

    await t.test('Authlib', async (t) => {
      t.equal(
        (await must([PYTHON, '-c', AUTHLIB, listening, client, await assertion()])).toString().trim(),
        'Bearer 200',
      )
    })

    await t.test('a program that only fetches URLs gets no assertion', async (t) => {
      const path = `http://169.254.169.254/latest/dynamic/instance-identity/token?audience=${BASE_URL}`
      t.equal(await shell(`curl -s -o /dev/null -w '%{http_code}' '${path}'`), '401')
    })
  },
)
