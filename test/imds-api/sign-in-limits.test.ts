/** The limits of sign-ins: failures of a client, a user or an address, and how many passwords are checked at once. */
import { createHook } from 'node:async_hooks'
import { once } from 'node:events'
import { request, type IncomingMessage } from 'node:http'
import { join } from 'node:path'
import t from 'tap'
import { ADA, APPLICATION, aRegion, CLIENT_OF, GRACE, ONE, secretOf, TWO } from '../support/fixtures/region.ts'
import { anApi, basic, countOfLockWaits, openTransaction, PROXY } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { newAddress, signInRequests, type From } from '../support/programs/token-requests.ts'

/** Ada has two-factor authentication, Grace and 45 others have not, and these have Grace's password. */
const [ada, grace] = aRegion().users
const OTHERS = Array.from({ length: 45 }, (_, i) => `usr-oth${i + 10}`)
const OTHER_APPLICATION = 'app-othr2'
const DAY_MS = 86_400_000

const clock = { nowMs: Date.parse('2026-11-22T12:00:00Z') }
const api = await anApi(t, {
  now: () => clock.nowMs,
  region: aRegion({
    users: [
      { ...ada!, totp_secret_file: 'ada.totp' },
      grace!,
      ...OTHERS.map((id) => ({ ...grace!, id, email_address: `${id}@example.com` })),
    ],
    applications: [
      [APPLICATION, ONE],
      [OTHER_APPLICATION, TWO],
    ].map(([id, account]) => ({ id: id!, account: account!, name: id!, secret_file: `${id!}.secret` })),
  }),
})

const { post, signIn, codeAt, freshCode } = signInRequests(api, clock)

t.test('after 10 failures of a user or a client from one address, it gets 429 there, and nowhere else', async (t) => {
  const [address, other] = [newAddress(), newAddress()]
  for (let i = 0; i < 10; i++) {
    const { status, headers } = await signIn('grace@example.com', 'wrong password', { address })
    t.equal(status, 401)
    t.match(headers, {
      'ratelimit-policy': '"failures";q=10;w=600',
      ratelimit: i < 9 ? `"failures";r=${9 - i}` : '"failures";r=0;t=60',
    })
  }
  for (const password of ['wrong password', secretOf(GRACE)]) {
    const { status, headers, body } = await signIn('Grace@example.com', password, { address })
    t.equal(status, 429)
    t.match(headers, {
      'retry-after': '60',
      ratelimit: '"failures";r=0;t=60',
      'content-type': /^application\/json/,
      'cache-control': 'no-store',
    })
    t.strictSame(body, {
      error: 'temporarily_unavailable',
      error_description: 'too many failed token requests: try again later',
      error_name: 'too_many_requests',
      errors: ['too many failed token requests: try again later'],
    })
  }
  t.equal((await signIn('grace@example.com', secretOf(GRACE), { address: other })).status, 200)
  t.equal(
    (await signIn(ADA, secretOf(ADA), { address, headers: { 'X-Service-OTP': freshCode() } })).status,
    200,
    'another user at that address',
  )
  const wrong = { authorization: basic(CLIENT_OF[ONE], 'wrong') }
  for (let i = 0; i < 10; i++)
    t.equal((await post({ grant_type: 'client_credentials' }, { headers: wrong, address })).status, 401)
  for (const from of [
    { headers: wrong, address },
    { client: CLIENT_OF[ONE], address },
  ])
    t.equal((await post({ grant_type: 'client_credentials' }, from)).status, 429)
  t.equal((await post({ grant_type: 'client_credentials' }, { client: CLIENT_OF[ONE], address: other })).status, 200)
})

t.test('the id and the e-mail address of a user have one limit, and no client id uses it up', async (t) => {
  const [address, other] = [newAddress(), newAddress()]
  for (const name of [GRACE, 'grace@example.com']) {
    for (let i = 0; i < 5; i++) t.equal((await signIn(name, 'wrong password', { address })).status, 401)
  }
  for (const name of [GRACE, 'grace@example.com'])
    t.equal((await signIn(name, secretOf(GRACE), { address })).status, 429, name)
  for (let i = 0; i < 11; i++)
    await post(
      { grant_type: 'client_credentials' },
      { headers: { authorization: basic(`user ${GRACE}`, 'wrong') }, address: other },
    )
  t.equal((await signIn(GRACE, secretOf(GRACE), { address: other })).status, 200)
})

t.test('behind a trusted proxy the limit is that of each client, and nobody else can name an address', async (t) => {
  const wrong = { authorization: basic(CLIENT_OF[ONE], 'wrong') }
  const statusOf = async (address: string, forwarded: string, headers: object = {}) =>
    (
      await post(
        { grant_type: 'client_credentials' },
        { client: CLIENT_OF[ONE], address, headers: { 'x-forwarded-for': forwarded, ...headers } },
      )
    ).status
  const [one, other, direct] = [newAddress(), newAddress(), newAddress()]
  for (let i = 0; i < 10; i++) t.equal(await statusOf(PROXY, one, wrong), 401)
  t.strictSame([await statusOf(PROXY, one), await statusOf(PROXY, other)], [429, 200])
  for (let i = 0; i < 10; i++) t.equal(await statusOf(direct, newAddress(), wrong), 401)
  t.equal(await statusOf(direct, newAddress()), 429)
})

t.test('clients of a unix socket, which have no address, get tokens and share one limit', async (t) => {
  const path = join(api.directory, 'api.sock')
  await api.server.listen({ path })
  const statusOf = async (secret: string) => {
    const sent = request({
      socketPath: path,
      path: '/token',
      method: 'POST',
      headers: { authorization: basic(CLIENT_OF[ONE], secret), 'content-type': 'application/x-www-form-urlencoded' },
    })
    sent.end('grant_type=client_credentials')
    const [response] = (await once(sent, 'response')) as [IncomingMessage]
    response.resume()
    return response.statusCode
  }
  t.equal(await statusOf(secretOf(CLIENT_OF[ONE])), 200)
  for (let i = 0; i < 10; i++) t.equal(await statusOf('wrong'), 401)
  t.equal(await statusOf(secretOf(CLIENT_OF[ONE])), 429)
})

t.test('successes, and right passwords without a code, are not limited', async (t) => {
  const address = newAddress()
  for (let i = 0; i < 12; i++) {
    t.equal((await signIn(GRACE, secretOf(GRACE), { address })).status, 200)
    t.equal((await signIn(ADA, secretOf(ADA), { address })).headers['x-service-otp'], 'required')
  }
  const clients = await Promise.all(
    Array.from({ length: 12 }, () => post({ grant_type: 'client_credentials' }, { client: CLIENT_OF[ONE], address })),
  )
  t.ok(clients.every(({ status }) => status === 200))
})

t.test('guesses of codes are limited too', async (t) => {
  const address = newAddress()
  freshCode()
  const wrong = codeAt(clock.nowMs + 10 * DAY_MS)
  for (let i = 0; i < 10; i++) t.equal((await signIn(ADA, `${secretOf(ADA)}+${wrong}`, { address })).status, 401)
  t.equal((await signIn(ADA, `${secretOf(ADA)}+${codeAt(clock.nowMs)}`, { address })).status, 429)
})

t.test('guesses in parallel exceed the limit by one at most', async (t) => {
  const address = newAddress()
  const answers = await Promise.all(Array.from({ length: 30 }, () => signIn(GRACE, 'wrong password', { address })))
  const failures = answers.filter(({ status }) => status === 401).length
  t.ok(failures === 10 || failures === 11, String(failures))
  t.equal(answers.filter(({ status }) => status === 429).length, 30 - failures)
})

/** Two sign-ins of Grace that take both places until `end`: they wait for her row, which is locked. */
async function takeBothPlaces(): Promise<{ readonly end: () => Promise<void> }> {
  const lock = await openTransaction(api.database.db)
  await lock.selectFrom('users').select('id').where('id', '=', GRACE).forUpdate().execute()
  const first = [signIn(GRACE, secretOf(GRACE)), signIn(GRACE, secretOf(GRACE))]
  await until(async () => (await countOfLockWaits(api.database.pool)) === 2, 'two sign-ins to wait for the row')
  return {
    end: async () => {
      await lock.commit().execute()
      for (const answer of first)
        if ((await answer).status !== 200) throw new Error('a sign-in that took a place failed')
    },
  }
}

/** Sign-ins with Grace's password, and how many of them were refused until now. */
function signInAll(users: readonly string[], from?: From) {
  const sent = { refused: 0 }
  const answers = users.map(async (user) => {
    const { status } = await signIn(user, secretOf(GRACE), from)
    sent.refused += status === 503 ? 1 : 0
    return status
  })
  return {
    statuses: Promise.all(answers),
    refusedAre: (count: number) => until(() => sent.refused === count, `${count} sign-ins to be refused`),
  }
}

const numberOf = (statuses: readonly number[]) => (status: number) => statuses.filter((one) => one === status).length

t.test('two passwords at most are checked at once, 32 requests wait, others get 503 with Retry-After', async (t) => {
  const active = new Set<number>()
  let most = 0
  const hook = createHook({
    init: (id, type) => {
      if (type === 'SCRYPTREQUEST') most = Math.max(most, active.add(id).size)
    },
    after: (id) => active.delete(id),
  }).enable()
  const places = await takeBothPlaces()
  const { statuses, refusedAre } = signInAll(OTHERS.slice(0, 35))
  await refusedAre(3)
  t.match(await signIn(OTHERS[35]!, secretOf(GRACE)), {
    status: 503,
    headers: { 'retry-after': '5', 'cache-control': 'no-store' },
    body: { error: 'temporarily_unavailable', error_name: 'service_unavailable' },
  })
  await places.end()
  t.strictSame([200, 503].map(numberOf(await statuses)), [32, 3])
  hook.disable()
  t.equal(most, 2)
})

t.test('sign-ins with the applications of one account make no user of another account get 503', async (t) => {
  const places = await takeBothPlaces()
  const { statuses, refusedAre } = signInAll(OTHERS, { client: OTHER_APPLICATION })
  await refusedAre(13)
  const answers = [signIn(OTHERS[1]!, secretOf(GRACE)), signIn('nobody', 'wrong password')]
  await refusedAre(15)
  await places.end()
  t.strictSame(
    (await Promise.all(answers)).map(({ status }) => status),
    [200, 401],
  )
  t.strictSame([200, 503].map(numberOf(await statuses)), [30, 15])
})
