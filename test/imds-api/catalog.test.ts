/**
 * What an account and the region are: accounts, users, zones, server types, images, and the resources of other
 * documents. Compared whole.
 */
import t from 'tap'
import { ADA, ADAS_KEY, GRACE, GRACES_KEY, ONE, TWO } from '../support/fixtures/region.ts'
import {
  collectedAccount,
  fullAccount,
  nestedAccount,
  nestedImage,
  nestedServerGroup,
  nestedUser,
  serverType,
  TIME,
  zone,
} from '../support/fixtures/representations.ts'
import { anApi } from '../support/programs/api.ts'

const api = await anApi(t)
const get = async (url: string, account?: typeof ONE | typeof TWO) => {
  const { status, body } = await api.call('GET', url, undefined, account)
  return { status, body: body as Record<string, never> & Record<string, never>[] }
}
const notFound = (what: string) => ({
  status: 404,
  body: { error_name: 'resource_not_found', errors: [`${what} does not exist`] },
})

t.test('zones: the list by handle, members by id and by handle', async (t) => {
  const [a, b] = [zone('zon-aaaa1'), zone('zon-bbbb2')]
  t.strictSame(await get('/1.0/zones'), { status: 200, body: [a, b] })
  for (const name of ['zon-bbbb2', 'gb1-b']) t.strictSame(await get(`/1.0/zones/${name}`), { status: 200, body: b })
  t.strictSame(await get('/1.0/zones/zon-zzzzz'), notFound('the zone zon-zzzzz'))
})

t.test('server types: the list by RAM, members by id and by handle', async (t) => {
  const [small, large] = [serverType('typ-small'), serverType('typ-large')]
  t.strictSame(await get('/1.0/server_types'), { status: 200, body: [small, large] })
  for (const name of ['typ-large', '4gb.ssd'])
    t.strictSame(await get(`/1.0/server_types/${name}`), { status: 200, body: large })
  t.strictSame(await get('/1.0/server_types/8gb'), notFound('the server type 8gb'))
})

t.test('images: public ones and those of the account, members by id and by handle', async (t) => {
  const { body: list } = await get('/1.0/images', TWO)
  const created = String(list[0]!['created_at'])
  t.match(created, TIME)
  const image = (id: Parameters<typeof nestedImage>[0], more: object = {}) => ({
    ...nestedImage(id, created),
    source_type: 'upload',
    compatibility_mode: false,
    min_ram: null,
    disk_size: 2048,
    virtual_size: 10_240,
    licence_name: null,
    ancestor: null,
    ...more,
  })
  const own = image('img-two02', { min_ram: 512, disk_size: 1024, virtual_size: 2048, licence_name: 'GPL' })
  t.strictSame(list, [image('img-deb12'), image('img-old03'), own])
  t.strictSame(await get('/1.0/images'), { status: 200, body: [image('img-deb12'), image('img-old03')] })
  for (const name of ['img-deb12', 'debian-12'])
    t.strictSame(await get(`/1.0/images/${name}`), { status: 200, body: image('img-deb12') })
  t.strictSame(await get('/1.0/images/img-two02', TWO), { status: 200, body: own })
  t.strictSame(await get('/1.0/images/img-two02'), notFound('the image img-two02'))
})

t.test('accounts: collected in the list, full as a member and as the account of the token', async (t) => {
  for (const id of [ONE, TWO] as const) {
    const { body: list } = await get('/1.0/accounts', id)
    const group = list[0]!['server_groups']![0] as { id: string; created_at: string }
    t.match(group, { id: /^grp-[0-9a-z]{5}$/, created_at: TIME })
    const { id: groupId, created_at } = group
    const collected = collectedAccount(id, {
      server_groups: [
        nestedServerGroup(groupId, {
          name: 'default',
          description: 'All servers that name no group',
          created_at,
          default: true,
        }),
      ],
      images: id === ONE ? [] : [nestedImage('img-two02', created_at)],
    })
    t.strictSame(list, [collected])
    const full = { status: 200, body: { ...collected, ...fullAccount(id, created_at) } }
    t.strictSame(await get(`/1.0/accounts/${id}`, id), full)
    t.strictSame(await get('/1.0/account', id), full)
  }
  t.strictSame(await get(`/1.0/accounts/${TWO}`), notFound(`the account ${TWO}`))
})

t.test('users: those of the account, and the owner as the user of the token', async (t) => {
  const { body: list } = await get('/1.0/users', TWO)
  const created_at = String(list[0]!['created_at'])
  t.match(created_at, TIME)
  const ada = {
    ...nestedUser(ADA),
    email_verified: true,
    ssh_key: ADAS_KEY,
    messaging_pref: true,
    created_at,
    accounts: [nestedAccount(ONE)],
    default_account: nestedAccount(ONE),
  }
  const grace = {
    ...nestedUser(GRACE),
    email_verified: true,
    ssh_key: GRACES_KEY,
    messaging_pref: false,
    created_at,
    accounts: [nestedAccount(TWO)],
    default_account: nestedAccount(TWO),
  }
  // her own account is none of its users' business
  const adaInTwo = { ...ada, accounts: [nestedAccount(TWO)], default_account: null }
  t.strictSame(
    list,
    [adaInTwo, grace].map((user) => ({ ...user, default_account: null })),
  )
  t.strictSame(await get('/1.0/users'), { status: 200, body: [{ ...ada, default_account: null }] })
  t.strictSame(await get(`/1.0/users/${ADA}`, TWO), { status: 200, body: adaInTwo })
  t.strictSame(await get('/1.0/user'), { status: 200, body: ada })
  t.strictSame(await get('/1.0/user', TWO), { status: 200, body: grace })
  t.strictSame(await get(`/1.0/users/${GRACE}`), notFound(`the user ${GRACE}`))
})

t.test('an ssh_key that is not set is empty text, and 2fa shows that a TOTP secret is set', async (t) => {
  await api.database.db
    .updateTable('users')
    .set({ ssh_key: null, totp_secret: 'JBSWY3DPEHPK3PXP' })
    .where('id', '=', GRACE)
    .execute()
  const { body } = await get('/1.0/user', TWO)
  t.match(body, { ssh_key: '', '2fa': { enabled: true } })
  t.notMatch(JSON.stringify(body), /JBSWY/)
})

t.test('resources of other documents: an empty list, no member, and no changes', async (t) => {
  for (const collection of ['load_balancers', 'database_snapshots', 'firewall_policies', 'firewall_rules', 'volumes']) {
    t.strictSame(await get(`/1.0/${collection}`), { status: 200, body: [] }, collection)
    t.strictSame(await get(`/1.0/${collection}/xyz-aaaaa`), notFound('xyz-aaaaa'), collection)
    const refused = {
      status: 501,
      body: {
        error_name: 'not_implemented',
        errors: [`changes of ${collection.replaceAll('_', ' ')} are not implemented`],
      },
    }
    for (const [method, path] of [
      ['POST', ''],
      ['PUT', '/xyz-aaaaa'],
      ['DELETE', '/xyz-aaaaa'],
      ['POST', '/xyz-aaaaa/reset'],
    ] as const) {
      t.match(await api.call(method, `/1.0/${collection}${path}`, {}), refused, `${method} ${collection}${path}`)
    }
  }
})
