/**
 * Vulnerabilities of other services that this one does not have: headers by which a guest could impersonate another, and
 * paths that led to other data. test/imdsd/sockets.test.ts has those that a URL parser would change.
 */
import { expect, test } from 'vitest'
import { aGuestServer } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'

const [OWN, NEIGHBOUR, UNKNOWN_PEER] = ['10.0.0.2', '10.0.0.6', '10.0.0.9']
const PATH = '/latest/meta-data/hostname'

function server() {
  const guest = aGuestServer()
  for (const [name, address] of [
    ['own', OWN],
    ['victim', NEIGHBOUR],
  ] as const)
    guest.put(
      anInstance({
        id: `srv-${name}`,
        fqdn: `${name}.example.com`,
        account: `acc-${name}`,
        publicKeys: [{ user: `usr-${name}`, key: `ssh-rsa ${name}` }],
        interfaces: [{ id: `int-${name}`, macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${address}/30`] }],
      }),
      Buffer.from(name),
    )
  return guest
}

test.each<[service: string, headers: Record<string, string>]>([
  ['nova, hollow, G-PORTAL', { 'x-forwarded-for': NEIGHBOUR }],
  ['OpenCHAMI', { 'x-forwarded-for': `${NEIGHBOUR}, ${OWN}` }],
  ['OpenCHAMI', { 'x-real-ip': NEIGHBOUR }],
  ['OpenCHAMI', { 'true-client-ip': NEIGHBOUR }],
  ['a proxy', { forwarded: `for=${NEIGHBOUR};host=169.254.169.254` }],
  ['a proxy', { via: `1.1 ${NEIGHBOUR}` }],
  ['a load balancer', { 'x-client-ip': NEIGHBOUR }],
  ['a load balancer', { 'cf-connecting-ip': NEIGHBOUR }],
  ['nova', { 'x-instance-id': 'srv-victim' }],
  ['nova', { 'x-instance-id-signature': '0', 'x-instance-id': 'srv-victim', 'x-tenant-id': 'acc-victim' }],
  ['neutron', { 'x-neutron-network-id': 'default', 'x-ovn-network-id': 'default' }],
  ['a reverse proxy', { 'x-original-url': '/instances/srv-victim', 'x-rewrite-url': '/instances/srv-victim' }],
  ['a virtual host', { host: 'victim.example.com' }],
  ['a virtual host', { host: NEIGHBOUR }],
  ['a method override', { 'x-http-method-override': 'PUT' }],
])('E1: a header that %s trusted changes no identity: %j', async (_service, headers) => {
  const answer = await server().ask({ url: PATH, headers })
  expect([`200 own.example.com`, '403 ']).toContain(`${answer.status} ${answer.text}`)
  expect((await server().ask({ url: PATH, headers, from: UNKNOWN_PEER })).status).toBe(503)
})

/** `ours`: paths of the operator API. */
test.each<[service: string, what: string, target: string, status: number]>([
  ['kiam', 'a query that names another address', `${PATH}?ip=${NEIGHBOUR}&remote=${NEIGHBOUR}`, 200],
  ['Tootles', 'a tree by instance id', '/tootles/instanceID/srv-victim/2009-04-04/meta-data/hostname', 404],
  ['Hegel', 'a tree by instance id', '/latest/meta-data/srv-victim/hostname', 404],
  ['pve-imds', 'any word as a version', '/anything/meta-data/hostname', 404],
  ['Spinifex', 'any date as a version', '/2031-01-01/meta-data/hostname', 404],
  ['Titus', 'an unknown path, handed on to another server', '/computeMetadata/v1/instance/', 404],
  ['Titus', 'credentials', '/latest/meta-data/iam/security-credentials/', 404],
  ['OpenCHAMI', "administration on the guests' port", '/admin/nodes', 404],
  ['OpenCHAMI', 'impersonation by path', '/cloud-init/admin/impersonation/srv-victim/meta-data', 404],
  ['EVE', "metrics on the guests' port", '/metrics', 404],
  ['ours', "the operator API on the guests' port", '/readyz', 404],
  ['ours', "the operator API on the guests' port", '/instances/srv-victim', 404],
  ['JavaScript services', 'a property that every object has', '/latest/meta-data/__proto__', 404],
  ['JavaScript services', 'a property that every object has', '/latest/constructor/name', 404],
])("A8: %s: %s: %s is %i, without a neighbour's data", async (_service, _what, url, status) => {
  const answer = await server().ask({ url })
  expect(answer.status).toBe(status)
  expect(answer.text).not.toContain('victim')
})

test('no header or path of a guest makes a new series of a metric', async () => {
  const guest = server()
  for (let n = 0; n < 50; n++)
    await guest.ask({
      url: n % 2 === 0 ? '/latest/user-data' : `/warm${n}`,
      headers: { 'user-agent': String(n), 'x-real-ip': String(n) },
    })
  expect(guest.meter.counts()).toHaveLength(2)
})
