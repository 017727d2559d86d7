/** A3 to A8, E1 and E2 of the contract as a table: a request, and the status, headers and bytes of its response. */
import { describe, expect, test, vi } from 'vitest'
import { REFUSALS, statusOf, type RefusalReason } from '../../src/imdsd/guest/refusals.ts'
import { aGuestServer, type Injected, type Injection } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'

const ID = '/latest/meta-data/instance-id'
const PAGE = {
  400: errorPage('400 - Bad Request', 343),
  404: errorPage('404 - Not Found', 339),
  503: errorPage('503 - Service Unavailable', 359),
}

const DUAL_STACK = [
  {
    id: 'int-a',
    macAddress: '02:24:19:00:00:ee',
    ipv4Addresses: ['10.0.0.2/30'],
    ipv6Addresses: ['fd00::2/64'],
    ipv6Prefixes: ['2a02:1348:178:1::/64'],
  },
]

function server() {
  const guest = aGuestServer()
  guest.put(anInstance(), Buffer.from('x'))
  return guest
}

/** What a browser sends for a page of another origin. */
const FROM_PAGE = {
  origin: 'http://evil.example',
  'access-control-request-method': 'GET',
  'access-control-request-headers': 'x',
}

/** Contract number, what the row shows, the request, and the status and body of the response. */
const ROWS: [string, string, string | Injection, number, string][] = [
  ['A1', 'an unknown version', '/2010-01-01/meta-data/instance-id', 404, PAGE[404]],
  ['A1', 'a version with a letter missing', '/lates/meta-data/instance-id', 404, PAGE[404]],
  ['A1', 'a version in capitals', '/LATEST/meta-data/instance-id', 404, PAGE[404]],
  ['A3', 'doubled slashes inside', '/latest//meta-data///instance-id', 200, 'srv-abcde'],
  ['A3', 'doubled slashes at the start', '//latest/meta-data/instance-id', 200, 'srv-abcde'],
  ['A3', 'a leaf with a final slash', `${ID}/`, 200, 'srv-abcde'],
  ['A3', 'a path below a leaf', `${ID}/x`, 404, PAGE[404]],
  ['A3', 'capitals in a path', '/latest/meta-data/Instance-Id', 404, PAGE[404]],
  ['A3', 'an escaped letter', '/latest/meta-data/instance%2Did', 200, 'srv-abcde'],
  ['A3', 'an escaped slash separates nothing', '/latest/meta-data%2Finstance-id', 404, PAGE[404]],
  ['A3', 'an escaped escape is decoded once', '/latest/meta-data/instance%252Did', 404, PAGE[404]],
  ['A3', 'a malformed escape', '/latest/meta-data/%zz', 400, PAGE[400]],
  ['A3', 'a cut escape', '/latest/meta-data/%2', 400, PAGE[400]],
  ['A3', 'an escape that is not UTF-8', '/latest/meta-data/%ff', 400, PAGE[400]],
  ['A3', 'a query is ignored', `${ID}?x=1`, 200, 'srv-abcde'],
  ['A6', 'a request of a web page in a browser of the guest', { url: ID, headers: FROM_PAGE }, 200, 'srv-abcde'],
  ['A6', 'a preflight of such a page', { method: 'OPTIONS', url: ID, headers: FROM_PAGE }, 405, ''],
  ['A4', 'HEAD on a leaf', { method: 'HEAD', url: ID }, 200, ''],
  [
    'A4',
    'a body on GET is ignored',
    { url: ID, headers: { 'content-type': 'application/json' }, payload: '{' },
    200,
    'srv-abcde',
  ],
  [
    'A4',
    'a malformed content type on GET is ignored',
    { url: ID, headers: { 'content-type': ';;' }, payload: 'x' },
    200,
    'srv-abcde',
  ],
  ...['PUT', 'POST', 'DELETE', 'OPTIONS', 'PATCH', 'PROPFIND'].map(
    (method): [string, string, Injection, number, string] => [
      'A4',
      `${method} on a leaf`,
      { method, url: ID, headers: { 'content-type': 'application/x-www-form-urlencoded' }, payload: 'a=b' },
      405,
      '',
    ],
  ),
  ['A4', 'PUT on nothing', { method: 'PUT', url: '/nothing' }, 404, ''],
  [
    'A5',
    'a body whose last encoding is chunked',
    { url: ID, headers: { 'transfer-encoding': 'gzip,\tChunked' } },
    200,
    'srv-abcde',
  ],
  ['A5', 'any User-Agent and Host', { url: ID, headers: { host: 'evil.example', 'user-agent': '' } }, 200, 'srv-abcde'],
  ['A7', 'HEAD on nothing has no page', { method: 'HEAD', url: '/latest/nothing' }, 404, ''],
  ['A7', 'a request for errors without a body', '/latest/nothing?error_body=false', 404, ''],
  ['A7', 'the same beside other parameters', '/latest/nothing?a=b&error_body=false&recursive=true', 404, ''],
  ['A7', 'the same for a malformed target', '/%zz?error_body=false', 400, ''],
  ['A7', 'the same for an unknown address', { url: `${ID}?error_body=false`, from: '10.0.0.9' }, 503, ''],
  ['A7', 'a value is the same', `${ID}?error_body=false`, 200, 'srv-abcde'],
  ['A7', 'no other value of error_body', '/latest/nothing?error_body=falsely', 404, PAGE[404]],
  ['A7', 'the same before a fragment', '/latest/nothing?error_body=false#x', 404, ''],
  ['A7', 'no such text in a path', '/latest/error_body=false', 404, PAGE[404]],
  ['A7', 'no other parameter', '/latest/nothing?xerror_body=false', 404, PAGE[404]],
  ['A8', 'no other tree', '/openstack/latest/meta_data.json', 404, PAGE[404]],
  ['A8', 'no listing of the other tree', '/openstack/latest/', 404, PAGE[404]],
  ['A8', 'no dated version of the other tree', '/openstack/2012-08-10/user_data', 404, PAGE[404]],
  [
    'E1',
    'a header does not change the identity',
    { url: ID, headers: { 'x-real-ip': '10.0.0.9', 'x-instance-id': 'srv-other', host: '10.0.0.9' } },
    200,
    'srv-abcde',
  ],
  [
    'E1',
    'an IPv4-mapped peer is identified by its IPv4 address',
    { url: ID, from: '::ffff:10.0.0.2' },
    200,
    'srv-abcde',
  ],
  ['E1', 'a query does not change the identity', { url: `${ID}?ip=10.0.0.2`, from: '10.0.0.9' }, 503, PAGE[503]],
  ['E2', 'an unknown address', { url: ID, from: '10.0.0.9' }, 503, PAGE[503]],
  ['E2', 'an unknown address that asks for a malformed target', { url: '/%zz', from: '10.0.0.9' }, 503, PAGE[503]],
  [
    'E2',
    'an unknown address that asks for a token',
    { method: 'PUT', url: '/latest/api/token', from: '10.0.0.9' },
    503,
    '',
  ],
  ['E2', 'an unknown IPv6 address', { url: ID, from: 'fd00::9' }, 503, PAGE[503]],
]

test.each(ROWS)('%s: %s', async (_number, _what, injection, status, body) => {
  const answer = await server().ask(injection)
  expect([answer.status, answer.text]).toEqual([status, body])
  const isHead = typeof injection !== 'string' && injection.method === 'HEAD'
  if (!isHead) expect(answer.headers['content-length']).toBe(String(body.length))
  if (isHead && status === 200) expect(answer.headers['content-length']).toBe('9')
  expect(answer.headers['content-type']).toBe(body.startsWith('<?xml') ? 'text/html' : 'text/plain')
  expect(answer.headers['retry-after']).toBe(status === 503 ? '1' : undefined)
  expect(answer.headers['allow']).toBe(status === 405 ? 'GET, HEAD' : undefined)
  expectNoForbiddenHeader(answer)
})

/** Fails on a header that A6 forbids. */
function expectNoForbiddenHeader({ headers }: Injected) {
  const forbidden = ['server', 'transfer-encoding', 'content-encoding', 'location', 'vary', 'x-powered-by']
  const sent = Object.keys(headers).filter((name) => forbidden.includes(name) || name.startsWith('access-control-'))
  expect(sent).toEqual([])
  expect(headers['date']).toBeDefined()
}

describe('every refusal', () => {
  /** A request for each refusal that a request can get; the others end a connection before there is a request. */
  const CAUSES: Partial<Record<RefusalReason, Injection>> = {
    'malformed-target': { url: '/latest/%zz' },
    'not-found': { url: '/latest/nothing' },
    'method-not-allowed': { method: 'POST', url: ID },
    'endpoint-disabled': { url: ID },
    'ipv6-disabled': { url: ID, from: 'fd00::2' },
    'unknown-peer': { url: ID, from: '10.0.0.9' },
    'contested-address': { url: ID },
    'unconfirmed-address': { url: ID },
    'internal-error': { url: '/latest/meta-data/hostname' },
    'bad-token-ttl': { method: 'PUT', url: '/latest/api/token' },
    'token-invalid': { url: ID, headers: { 'x-aws-ec2-metadata-token': 'x' } },
    'token-required': { url: ID },
    'token-method': { url: '/latest/api/token' },
    'hop-limit-failed': {
      method: 'PUT',
      url: '/latest/api/token',
      headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
    },
    'dated-token-path': { method: 'PUT', url: '/2021-07-15/api/token' },
    forwarded: { url: ID, headers: { 'x-forwarded-for': '10.0.0.2' } },
    'over-share': { url: ID },
  }
  /** Tested over real sockets by test/imdsd/sockets.test.ts and share.test.ts. */
  const WITHOUT_REQUEST: RefusalReason[] = [
    'malformed-request',
    'headers-too-large',
    'request-timeout',
    'too-many-connections',
  ]
  /** Tested by waiting.test.ts and identity.test.ts. */
  const OF_SLOW_REQUESTS: RefusalReason[] = ['too-many-waiting', 'bad-audience', 'not-signed']
  /** Tested by reports.test.ts. */
  const OF_REPORTS: RefusalReason[] = [
    'bad-report',
    'report-method',
    'phone-home-method',
    'report-too-large',
    'too-many-reports',
  ]

  test('has a row here or in the test of the sockets', () => {
    expect([...Object.keys(CAUSES), ...WITHOUT_REQUEST, ...OF_SLOW_REQUESTS, ...OF_REPORTS].sort()).toEqual(
      [...REFUSALS].sort(),
    )
  })

  test.each(Object.entries(CAUSES) as [RefusalReason, Injection][])(
    '%s: has its status and is counted once with its reason',
    async (refusal, injection) => {
      const guest = aGuestServer({
        limitsHops: refusal !== 'hop-limit-failed',
        waitsForRules: refusal === 'unconfirmed-address',
        ...(refusal === 'over-share' && { share: { burst: 0, perSecond: 0, connections: 1 } }),
      })
      guest.put(anInstance(), Buffer.from('x'))
      if (refusal === 'over-share') vi.spyOn(guest.view.get('srv-abcde')!, 'paths', 'get').mockReturnValue(0)
      if (refusal === 'token-required') guest.put(anInstance({ options: { httpTokens: 'required' } }))
      if (refusal === 'endpoint-disabled') guest.put(anInstance({ options: { httpEndpoint: 'disabled' } }))
      if (refusal === 'ipv6-disabled') guest.put(anInstance({ interfaces: DUAL_STACK }))
      if (refusal === 'contested-address') guest.put(anInstance({ id: 'srv-other' }))
      if (refusal === 'internal-error') {
        const served = guest.view.get('srv-abcde')
        if (served)
          served.resolve = () => {
            throw new Error('a bug')
          }
      }
      const answer = await guest.ask(injection)
      expect(answer.status).toBe(statusOf(refusal))
      expect(guest.meter.counts()).toMatchObject([{ reason: refusal, status: statusOf(refusal), count: 1 }])
      if (injection.method !== undefined) expect(answer.text).toBe('')
      expectNoForbiddenHeader(answer)
    },
  )

  test('that is caused by a bug is logged with its cause and has an empty body', async () => {
    const guest = server()
    const served = guest.view.get('srv-abcde')
    if (served)
      served.resolve = () => {
        throw new Error('a bug')
      }
    expect(await guest.ask(ID)).toMatchObject({ status: 500, text: '' })
    expect(guest.log).toMatchObject([{ level: 50, err: { message: 'a bug' } }])
  })
})

describe('D6: an instance option that disables the service', () => {
  const CLOSED = 'endpoint-disabled'
  const NO_IPV6 = 'ipv6-disabled'
  const SERVED = 'served'
  const ROWS: [string, string, Record<string, string>, string, string][] = [
    [
      'D6',
      'httpEndpoint is disabled: refused over IPv4',
      { httpEndpoint: 'disabled', httpProtocolIpv6: 'enabled' },
      '10.0.0.2',
      CLOSED,
    ],
    [
      'D6',
      'httpEndpoint is disabled: refused over IPv6',
      { httpEndpoint: 'disabled', httpProtocolIpv6: 'enabled' },
      'fd00::2',
      CLOSED,
    ],
    ['E1', "httpProtocolIpv6 is not set: EC2's default, refused over IPv6", {}, 'fd00::2', NO_IPV6],
    ['E1', 'httpProtocolIpv6 is disabled: refused over IPv6', { httpProtocolIpv6: 'disabled' }, 'fd00::2', NO_IPV6],
    [
      'E1',
      'httpProtocolIpv6 is disabled: refused from inside a prefix',
      { httpProtocolIpv6: 'disabled' },
      '2a02:1348:178:1::abcd',
      NO_IPV6,
    ],
    ['E1', 'httpProtocolIpv6 is disabled: served over IPv4', { httpProtocolIpv6: 'disabled' }, '10.0.0.2', SERVED],
    [
      'E1',
      'httpProtocolIpv6 is disabled: served over IPv4 on a listener of both',
      { httpProtocolIpv6: 'disabled' },
      '::ffff:10.0.0.2',
      SERVED,
    ],
    ['E1', 'httpProtocolIpv6 is enabled: served over IPv6', { httpProtocolIpv6: 'enabled' }, 'fd00::2', SERVED],
    [
      'E1',
      'httpProtocolIpv6 is enabled: served from inside a prefix',
      { httpProtocolIpv6: 'enabled' },
      '2a02:1348:178:1::abcd',
      SERVED,
    ],
  ]
  const REQUESTS: Injection[] = [
    { url: ID },
    { url: '/' },
    { url: '/nothing' },
    { url: '/%zz' },
    { url: '/openstack/latest/user_data' },
    { method: 'HEAD', url: ID },
    { method: 'POST', url: ID },
    { method: 'PUT', url: '/latest/api/token' },
  ]

  test.each(ROWS)('%s: %s', async (_number, _what, options, from, reason) => {
    const guest = aGuestServer()
    const [nic] = DUAL_STACK
    guest.put(anInstance({ interfaces: [{ ...nic, ipv6Addresses: ['fd00::2/64'] }], options }))
    if (reason === SERVED) {
      expect(await guest.ask({ url: ID, from })).toMatchObject({ status: 200, text: 'srv-abcde' })
      return
    }
    for (const injection of REQUESTS) {
      const answer = await guest.ask({ ...injection, from })
      expect(answer).toMatchObject({ status: 403, text: '', headers: { 'content-length': '0' } })
      expectNoForbiddenHeader(answer)
    }
    expect(new Set(guest.meter.counts().map((count) => count.reason))).toEqual(new Set([reason]))
    expect(guest.log).toEqual([])
  })

  test('E1: a link-local, multicast or unspecified address identifies no guest, whatever a record says', async () => {
    const guest = aGuestServer()
    const [nic] = DUAL_STACK
    const nobody = {
      ipv4Addresses: ['10.0.0.2/30', '169.254.7.7/16', '0.0.0.0', '224.0.0.1'],
      ipv6Addresses: ['fe80::2', 'ff02::1', '::'],
    }
    const put = (values: object) =>
      guest.put(anInstance({ interfaces: [{ ...nic, ...values }], options: { httpProtocolIpv6: 'enabled' } }))
    expect(() => put(nobody)).toThrow('which cannot identify a guest')
    put({ ipv4Addresses: ['10.0.0.2/30'] })
    for (const from of [
      'fe80::2%eth0',
      'fe80::2',
      'ff02::1',
      '::',
      '169.254.7.7',
      '::ffff:169.254.7.7',
      '0.0.0.0',
      '224.0.0.1',
    ]) {
      expect([from, (await guest.ask({ url: ID, from })).status]).toEqual([from, 503])
    }
    expect((await guest.ask({ url: ID, from: '10.0.0.2' })).status).toBe(200)
  })
})

test('A1: the versions are listed to a known guest', async () => {
  expect((await server().ask('/')).text.split('\n').at(-1)).toBe('latest')
  expect((await server().ask('///')).status).toBe(200)
})

/** EC2's error page; its length on current hosts is known. */
function errorPage(title: string, length: number): string {
  const page =
    '<?xml version="1.0" encoding="iso-8859-1"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"\n' +
    '\t\t "http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">\n<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">\n' +
    ` <head>\n  <title>${title}</title>\n </head>\n <body>\n  <h1>${title}</h1>\n </body>\n</html>\n`
  if (page.length !== length) throw new Error(`the page of ${title} is ${page.length} bytes, EC2's is ${length}`)
  return page
}

test.each([
  ['900 headers', { headers: Object.fromEntries(Array.from({ length: 900 }, (_, n) => [`x${n}`, ''])) }],
  ['a header of 14,000 characters', { headers: { 'if-none-match': ','.repeat(14_000) } }],
  ['a query of 14,000 characters', { url: `${ID}?${'&a'.repeat(7_000)}` }],
])('A9, F1: %s takes at least six requests from the share', async (_what, injection) => {
  const guest = aGuestServer({ share: { burst: 600, perSecond: 1, connections: 64 } })
  guest.put(anInstance())
  let served = 0
  while ((await guest.ask({ url: ID, ...injection })).status === 200) served += 1
  expect(served).toBeGreaterThan(20)
  expect(served).toBeLessThan(101)
})
