/**
 * What an account allows in each of its states: every route that changes something, as the table of
 * src/imds-api/model/account-states.ts says.
 */
import t from 'tap'
import { ACCOUNT_STATES, STATE_RULES, changeRefusal, type StateRule } from '../../src/imds-api/model/account-states.ts'
import { ADA, CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { routesOf } from '../support/fixtures/routes.ts'
import { anApi, countOfLockWaits, type Method, openTransaction, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const api = await anApi(t)
const { db } = api.database
const ada = await api.userToken(ADA)

/** Bodies that are right, for the routes that require one. Where one is missing, the test of its route sees 422. */
const BODIES: Readonly<Record<string, object>> = {
  'POST /servers': { image: 'img-deb12' },
  'POST /config_maps': { data: {} },
  'POST /collaborations': { email: 'new@example.com', role: 'admin' },
  'POST /cloud_ips/ID/map': { destination: 'int-none1' },
  'POST /server_groups/ID/add_servers': { servers: [] },
  'POST /server_groups/ID/remove_servers': { servers: [] },
  'POST /server_groups/ID/move_servers': { servers: [], destination: 'grp-none1' },
}
/** Resizing, and the resources of other documents: no change of them is implemented (501), in any state. */
const NOT_IMPLEMENTED =
  /^\w+ \/(?:load_balancers|database_servers|database_snapshots|firewall_(?:policies|rules)|volumes|database_types|servers\/ID\/resize)(?:\/?\*)?$/

/** Every route that changes something, such as `PUT /servers/ID`. */
const ROUTES = routesOf(api.server)
  .filter(({ method }) => method !== 'GET')
  .map(({ method, path }) => `${method} ${path}`)
  .filter((route) => !NOT_IMPLEMENTED.test(route))

async function send(token: string, route: string): Promise<string> {
  const [method, path = ''] = route.split(' ')
  const url = path.replace('/accounts/ID', `/accounts/${ONE}`).replace('ID', 'xxx-none1')
  const { status, body } = await api.callWith(token, method as Method, `/1.0${url}?account_id=${ONE}`, BODIES[route])
  return `${status} ${(body as { error_name?: string }).error_name ?? ''}`.trim()
}

t.test('the router lists every route that changes something', (t) => {
  t.ok(ROUTES.length > 15, ROUTES.join())
  for (const route of [
    'POST /servers',
    'PUT /servers/ID',
    'PUT /servers/ID/lock_resource',
    'DELETE /cloud_ips/ID',
    'POST /server_groups/ID/move_servers',
  ])
    t.ok(ROUTES.includes(route), route)
  t.strictSame(
    Object.keys(STATE_RULES).filter((request) => /^[A-Z]+ \S+$/.test(request) && !ROUTES.includes(request)),
    [],
    'and the table has no other',
  )
  t.end()
})

const VERIFIED = { telephone_verified: true, valid_credit_card: true }
/** An account for each answer of the table. test/unit/imds-api/model/account-states.test.ts has all states. */
const ACCOUNTS = [
  ['active', { status: 'active', ...VERIFIED }],
  ['suspended', { status: 'suspended', ...VERIFIED }],
  ['active without a verified telephone', { status: 'active', ...VERIFIED, telephone_verified: false }],
] as const

for (const [name, account] of ACCOUNTS) {
  t.test(`an account that is ${name} allows the changes of the table`, async (t) => {
    await db.updateTable('accounts').set(account).where('id', '=', ONE).execute()
    const client = await api.token(CLIENT_OF[ONE])
    for (const route of ROUTES) {
      const refusal = changeRefusal(route in STATE_RULES ? (route as StateRule) : 'every other change', account)
      for (const token of [ada, client]) {
        const answer = await send(token, route)
        if (token === client && answer === '403 forbidden') continue // the user's own side is not for API clients
        if (refusal !== undefined)
          t.equal(answer, `403 ${refusal.name}`, `${route} as ${token === ada ? 'a user' : 'an API client'}`)
        else t.notMatch(answer, /^(?:422|5)| account_not/, route)
      }
    }
  })
}

t.test('a suspended account can lower the permissions of an API client, and change nothing else of it', async (t) => {
  await setRow(db, 'accounts', ONE, { status: 'suspended', ...VERIFIED })
  const client = `/1.0/api_clients/${CLIENT_OF[ONE]}`
  for (const body of [
    {},
    { permissions_group: 'full' },
    { name: 'x' },
    { name: 'x', permissions_group: 'storage' },
    { description: null, permissions_group: 'storage' },
  ]) {
    t.match(
      await api.callWith(ada, 'PUT', `${client}?account_id=${ONE}`, body),
      { status: 403, body: { error_name: 'account_not_active' } },
      JSON.stringify(body),
    )
  }
  t.match(await api.callWith(ada, 'PUT', `${client}?account_id=${ONE}`, { permissions_group: 'storage' }), {
    status: 200,
    body: { permissions_group: 'storage' },
  })
  await db.updateTable('api_clients').set({ permissions_group: 'full' }).where('id', '=', CLIENT_OF[ONE]).execute()
})

t.test('every state allows reading', async (t) => {
  for (const status of ACCOUNT_STATES) {
    await setRow(db, 'accounts', ONE, { status, telephone_verified: false, valid_credit_card: false })
    for (const path of [
      'account',
      `accounts/${ONE}`,
      'accounts',
      'servers',
      'cloud_ips',
      'server_groups',
      'users',
      'user',
      'images',
      'zones',
    ]) {
      t.equal((await api.call('GET', `/1.0/${path}`)).status, 200, `${status} ${path}`)
    }
  }
})

t.test('a change that waits while the account is suspended is refused', async (t) => {
  await setRow(db, 'accounts', ONE, { status: 'active', ...VERIFIED })
  const suspension = await openTransaction(db)
  await suspension.updateTable('accounts').set({ status: 'suspended' }).where('id', '=', ONE).execute()
  const answer = api.call('POST', '/1.0/server_groups', {})
  await until(async () => (await countOfLockWaits(api.database.pool)) === 1, 'the request to wait for the account')
  await suspension.commit().execute()
  t.match(await answer, {
    status: 403,
    body: {
      error_name: 'account_not_active',
      errors: ['the account is suspended: it can be read, but this change is not allowed'],
    },
  })
})
