/**
 * Vulnerabilities of other services (docs/security.md#lessons-from-other-services) that this one does not have, over
 * real sockets: headers by which a guest could impersonate another, and paths that led to other data.
 */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { exchange } from '../support/fixtures/socket.ts'
import { testDirectory } from '../support/test-directory.ts'

const [OWN, NEIGHBOUR, UNKNOWN_PEER] = ['127.0.0.1', '127.0.0.2', '127.0.0.3']
const PATH = '/latest/meta-data/hostname'

let daemon: TestDaemon
t.before(async () => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url })
  for (const [name, address] of [
    ['own', OWN],
    ['victim', NEIGHBOUR],
  ] as const) {
    const record = anInstance({
      id: `srv-${name}`,
      fqdn: `${name}.example.com`,
      account: `acc-${name}`,
      publicKeys: [{ user: `usr-${name}`, key: `ssh-rsa ${name}` }],
      interfaces: [{ id: `int-${name}`, macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${address}/8`] }],
    })
    await store.put(record, Buffer.from(name))
  }
  daemon = await startDaemon(t, { IMDS_STORE: url })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the instances')
})

const ask = (
  target: string,
  headers: readonly string[] = [],
  { from = OWN, method = 'GET' }: { from?: string; method?: string } = {},
) =>
  exchange(
    daemon.guestPort,
    `${[`${method} ${target} HTTP/1.1`, 'Connection: close', ...headers].join('\r\n')}\r\n\r\n`,
    { localAddress: from },
  )

/** Vulnerable services, and the headers by which a guest could impersonate another there. */
const FORGED_HEADERS: readonly (readonly [service: string, header: string])[] = [
  ['nova, hollow, G-PORTAL', `X-Forwarded-For: ${NEIGHBOUR}`],
  ['OpenCHAMI', `X-Forwarded-For: ${NEIGHBOUR}, ${OWN}`],
  ['OpenCHAMI', `X-Real-IP: ${NEIGHBOUR}`],
  ['OpenCHAMI', `True-Client-IP: ${NEIGHBOUR}`],
  ['a proxy', `Forwarded: for=${NEIGHBOUR};host=169.254.169.254`],
  ['a proxy', `Via: 1.1 ${NEIGHBOUR}`],
  ['a load balancer', `X-Client-IP: ${NEIGHBOUR}`],
  ['a load balancer', `CF-Connecting-IP: ${NEIGHBOUR}`],
  ['nova', 'X-Instance-ID: srv-victim'],
  ['nova', 'X-Instance-ID-Signature: 0\r\nX-Instance-ID: srv-victim\r\nX-Tenant-ID: acc-victim'],
  ['neutron', 'X-Neutron-Network-ID: default\r\nX-OVN-Network-ID: default'],
  ['a reverse proxy', `X-Original-URL: /instances/srv-victim\r\nX-Rewrite-URL: /instances/srv-victim`],
  ['a virtual host', 'Host: victim.example.com'],
  ['a virtual host', `Host: ${NEIGHBOUR}`],
  ['a method override', 'X-HTTP-Method-Override: PUT'],
]
for (const [service, header] of FORGED_HEADERS) {
  t.test(`E1: "${header.replaceAll('\r\n', '; ')}", which ${service} trusted, changes no identity`, async (t) => {
    const answer = await ask(PATH, header.startsWith('Host') ? [header] : ['Host: 169.254.169.254', header])
    t.ok(answer.body === 'own.example.com' || (answer.status === 403 && answer.body === ''), String(answer.status))
    t.notMatch(answer.text, /victim/)
    const unknownPeer = await ask(
      PATH,
      ['Host: 169.254.169.254', header.replace(/^Host: .*/, '')].filter((line) => line !== ''),
      { from: UNKNOWN_PEER },
    )
    t.equal(unknownPeer.status, 503, 'an unknown peer stays unknown')
  })
}

/**
 * Vulnerable services, the weakness that the path used there, and the status here. `ours`: paths of the operator API.
 */
const PATHS: readonly (readonly [service: string, what: string, target: string, status: number])[] = [
  ['kiam', 'a query that names another address', `${PATH}?ip=${NEIGHBOUR}&remote=${NEIGHBOUR}`, 200],
  [
    'Tootles',
    'a tree by instance id, for any client',
    '/tootles/instanceID/srv-victim/2009-04-04/meta-data/hostname',
    404,
  ],
  ['Hegel', 'a tree by instance id, for any client', '/latest/meta-data/srv-victim/hostname', 404],
  ['pve-imds', 'any word as a version', '/anything/meta-data/hostname', 404],
  ['Spinifex', 'any date as a version', '/2031-01-01/meta-data/hostname', 404],
  ['Titus', 'an unknown path, handed on to another server', '/computeMetadata/v1/instance/', 404],
  ['Titus', 'credentials', '/latest/meta-data/iam/security-credentials/', 404],
  ['OpenCHAMI', "administration on the guests' port", '/admin/nodes', 404],
  ['OpenCHAMI', 'impersonation by path', '/cloud-init/admin/impersonation/srv-victim/meta-data', 404],
  ['EVE', "metrics on the guests' port", '/metrics', 404],
  ['ours', "the operator API on the guests' port", '/readyz', 404],
  ['ours', "the operator API on the guests' port", '/instances/srv-victim', 404],
  ['CloudStack', 'files, by dots', `/latest/meta-data/../../${NEIGHBOUR}/user-data`, 404],
  ['CloudStack', 'files, by escaped dots', '/latest/meta-data/%2e%2e/%2e%2e/etc/passwd', 404],
  ['CloudStack', 'files, by an escaped slash', '/latest/meta-data/..%2fuser-data', 404],
  ['CloudStack', 'files, by backslashes', '/latest\\meta-data\\..\\user-data', 404],
  ['nova', 'a path whose dots climb out of it', '/latest/meta-data/../user-data', 404],
  ['JavaScript services', 'a property that every object has', '/latest/meta-data/__proto__', 404],
  ['JavaScript services', 'a property that every object has', '/latest/constructor/name', 404],
]
for (const [service, what, target, status] of PATHS) {
  t.test(`A8: ${what} (${service}): ${target} is ${String(status)}, without a neighbour's data`, async (t) => {
    const answer = await ask(target)
    t.equal(answer.status, status)
    t.notMatch(answer.text, /victim/)
  })
}

t.test('A7: an error page reveals nothing about its cause, the request or a library', async (t) => {
  for (const target of [
    '/latest/%zz<script>alert(1)</script>',
    '/latest/nothing<script>alert(1)</script>',
    '/%c0%af',
    `/${'x'.repeat(17_000)}`,
  ]) {
    const { text } = await ask(target, ['Host: <script>', 'User-Agent: <script>'])
    t.match(text, /^HTTP\/1\.1 40[04] /)
    t.notMatch(text, /script|node|fastify|error:|at .*\.ts|FST_|HPE_/i)
  }
})

t.test('metrics have no label that a guest can choose', async (t) => {
  const series = async () =>
    (await daemon.operator('/metrics')).body
      .toString()
      .split('\n')
      .filter((line) => line.startsWith('imds_request')).length
  for (const target of ['/warm', '/latest/user-data']) await ask(target, ['X-Forwarded-For: 1'], { method: 'GET' })
  const before = await series()
  for (let n = 0; n < 50; n++)
    await ask(n % 2 ? `/warm${String(n)}` : '/latest/user-data', [
      `X-Forwarded-For: ${String(n)}`,
      `User-Agent: ${String(n)}`,
    ])
  t.equal(await series(), before)
})
