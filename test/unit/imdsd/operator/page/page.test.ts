import { expect, test } from 'vitest'
import { buildHistory } from '../../../../../src/imdsd/operator/page/history.ts'
import { formatPage } from '../../../../../src/imdsd/operator/page/page.ts'
import { aGuestServer } from '../../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../../support/fixtures/instance.ts'
import { READY } from '../../../../support/fixtures/look.ts'

const HOSTILE = '"><script>alert(1)</script>'
const SECRET = 'a-secret-in-user-data'

/** The page of a hypervisor, which shows nothing until a test puts instances into its view. */
function aPage() {
  const guest = aGuestServer()
  const { view, requests, meter, clock } = guest
  const now = () => clock.ms
  const show = (search = '', page = 1) =>
    formatPage(
      {
        hypervisor: 'hv1',
        startedMs: 0,
        networks: ['default'],
        readiness: () => ({
          ...READY,
          store: `redis://${HOSTILE}`,
          conditions: [{ code: 'store-lost', severity: 'failure', text: HOSTILE, remedy: HOSTILE }],
        }),
        history: buildHistory(meter, now),
        view,
        requests,
        now,
        wall: () => Date.parse('2026-11-23T12:00:00Z'),
      },
      { search, page },
    )
  return { ...guest, show }
}

test('it has the health, the view, requests, refusals and instances, and its title has the worst state', async () => {
  const { show } = aPage()
  const text = await show()
  expect(text).toContain('<title>failure: imds on hv1</title>')
  expect([...text.matchAll(/<h2>([^<]*)/g)].map(([, heading]) => heading)).toEqual([
    'Health',
    'View and store',
    'Requests of guests',
    'Refusals',
    'Instances',
  ])
  expect(text).toContain('imdsd 1.0.0, started 0 s ago; 2026-11-23T12:00:00.000Z')
  expect(text).toContain('On this hypervisor, <code>sudo imdsctl doctor</code> also checks')
})

test('it has no user-data, key or token, and nothing that a record or a guest says is HTML', async () => {
  const { put, ask, show } = aPage()
  const { id, publicKeys } = put(
    anInstance({ serverGroups: [{ id: 'grp-sda44', name: HOSTILE }], tags: { name: HOSTILE } }),
    Buffer.from(SECRET),
  )
  const token = (
    await ask({
      method: 'PUT',
      url: '/latest/api/token',
      headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60', 'user-agent': HOSTILE },
    })
  ).text
  const headers = { 'x-aws-ec2-metadata-token': token, 'user-agent': HOSTILE }
  for (const url of ['/latest/user-data', '/latest/meta-data/public-keys/0/openssh-key']) await ask({ url, headers })
  const text = await show(id)
  expect(text).toContain(`<h2>Requests of ${id}</h2>`)
  expect(text).not.toContain('<script')
  expect(text).toContain('&lt;script&gt;alert(1)')
  for (const secret of [SECRET, token, publicKeys[0]!.key.split(' ')[1]!]) expect(text).not.toContain(secret)
  expect(await show(HOSTILE)).not.toContain('<script')
})

test('with 50 instances whose guests have asked, a page has at most 60 KB', async () => {
  const { put, ask, show } = aPage()
  for (let i = 1; i <= 60; i++) {
    put(
      anInstance({
        id: `srv-${String(i).padStart(5, 'a')}`,
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`10.0.1.${i}/16`] }],
      }),
    )
    for (const url of ['/latest/meta-data/instance-id', '/latest/user-data']) await ask({ url, from: `10.0.1.${i}` })
  }
  const text = await show()
  expect(text.match(/data-of="instance"/g)).toHaveLength(50)
  expect(Buffer.byteLength(text)).toBeLessThan(60 * 1024)
})
