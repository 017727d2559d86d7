/** Applying a region file to a database: the difference, what --prune deletes, and what changes for guests. */
import t from 'tap'
import { formatId } from '../../src/api/model/ids.ts'
import { InUse } from '../../src/api/region/apply.ts'
import type { RegionFile } from '../../src/api/region/schema.ts'
import { ADA, aRegion, GRACE, ONE, withFiles } from '../support/fixtures/region.ts'
import { anApi, apply } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const api = await anApi(t)
const { tables } = api.database

t.test('applying a region file again changes nothing', async (t) => {
  t.strictSame(await apply(api.database, aRegion()), [])
  t.strictSame(await apply(api.database, aRegion(), true), [])
})

t.test('the difference is made and named; only prune deletes', async (t) => {
  const { accounts, users, zones } = aRegion()
  const changed: Partial<RegionFile> = {
    zones: [...zones, { id: 'zon-cccc3', handle: 'gb1-c' }], users: [...users, { id: 'usr-new03', name: 'New', email_address: 'new@example.com' }],
    accounts: [{ ...accounts[0]!, cloud_ips_limit: 9, collaborators: ['usr-new03'] }, ...accounts.slice(1), { ...accounts[1]!, id: 'acc-new03', name: 'New' }],
  }
  const difference = [
    '+ zone zon-cccc3', '+ user usr-new03', `~ account ${ONE}: cloud_ips_limit 5 -> 9`, '+ account acc-new03', `+ collaboration of usr-new03 in ${ONE}`, '+ collaboration of usr-ada01 in acc-new03',
    '+ default server group of acc-new03',
  ]
  t.strictSame(await apply(api.database, aRegion(changed)), difference)
  t.strictSame(await apply(api.database, aRegion(changed)), [])
  t.strictSame(await apply(api.database, aRegion()), [`~ account ${ONE}: cloud_ips_limit 9 -> 5`])
  t.strictSame(await apply(api.database, aRegion(), true), ['- account acc-new03', '- user usr-new03', '- zone zon-cccc3'])
  t.strictSame(await apply(api.database, aRegion(), true), [])
})

t.test('what is in use is not pruned, and then nothing is changed', async (t) => {
  t.match(await api.call('POST', '/1.0/servers', { image: 'img-deb12', zone: 'gb1-a' }), { status: 202 })
  const { hypervisors, server_types, zones } = aRegion()
  const without = aRegion({ zones: zones.slice(0, 1), hypervisors: hypervisors.slice(0, 2), server_types: server_types.slice(1) })
  await t.rejects(apply(api.database, without, true), new InUse('server type typ-small is in use and cannot be deleted: nothing was changed'))
  t.strictSame(await apply(api.database, aRegion(), true), [])
})

t.test('servers are published again when a name that guests see changes, and only then', async (t) => {
  const { server_types: [small, large], users } = aRegion()
  const enqueued = async () => (await tables.selectFrom('outbox').select('server_id').execute()).length
  await tables.deleteFrom('outbox').execute()
  await apply(api.database, aRegion({ users: [{ ...users[0]!, name: 'Augusta' }, users[1]!] }))
  t.equal(await enqueued(), 0)
  t.strictSame(await apply(api.database, aRegion({ server_types: [{ ...small!, handle: 'small' }, large!] })), ['~ server type typ-small: handle 1gb.ssd -> small', '~ user usr-ada01: name Augusta -> Ada Lovelace'])
  t.equal(await enqueued(), 1)
})

t.test('an id of the region file is never given to a new resource', async (t) => {
  const { id } = (await api.call('POST', '/1.0/server_groups', {})).body as { id: string }
  t.match(id, /^grp-/)
  await tables.insertInto('given_ids').values({ id: nextAfter(id) }).execute()
  t.not(((await api.call('POST', '/1.0/server_groups', {})).body as { id: string }).id, nextAfter(id))
})

t.test('a password and a TOTP secret come from files; applied again, the same ones are no difference', async (t) => {
  await apply(api.database, aRegion())
  const [ada, grace] = aRegion().users as [RegionFile['users'][number], RegionFile['users'][number]]
  const fromFiles = aRegion({ users: [withFiles(ada, `${ADA}.password`, 'ada.totp'), grace] })
  t.strictSame(await apply(api.database, fromFiles), [`~ user ${ADA}: totp_secret`], 'the password is that of the hash before')
  t.strictSame(await apply(api.database, fromFiles), [])
  t.match(await api.call('GET', '/1.0/user'), { body: { '2fa': { enabled: true } } })
  const other = withFiles(ada, 'other.password', 'ada.totp')
  t.strictSame(await apply(api.database, aRegion({ users: [other, grace] })), [`~ user ${ADA}: password_hash`])
  t.strictSame(await apply(api.database, aRegion({ users: [other, grace] })), [])
  const { password_hash: hash } = await tables.selectFrom('users').select('password_hash').where('id', '=', ADA).executeTakeFirstOrThrow()
  t.match(hash, /^\$scrypt\$ln=15,r=8,p=3\$/)
  const { id, name, email_address, ssh_key } = ada
  const withoutAny = { id, name, email_address, ssh_key: ssh_key! }
  t.strictSame(await apply(api.database, aRegion({ users: [withoutAny, grace] })), [`~ user ${ADA}: password_hash, totp_secret`], 'without them the user cannot sign in')
  t.strictSame(await tables.selectFrom('users').select(['password_hash', 'totp_secret']).where('id', '=', ADA).execute(), [{ password_hash: null, totp_secret: null }])
  t.strictSame(await apply(api.database, aRegion()), [`~ user ${ADA}: password_hash`])
})

t.test('another password or TOTP secret ends sign-ins; only another secret forgets which code was used', async (t) => {
  const [ada, grace] = aRegion().users as [RegionFile['users'][number], RegionFile['users'][number]]
  const tokens = { ada: await api.userToken(ADA), grace: await api.userToken(GRACE) }
  const isValid = async (token: string) => (await api.callWith(token, 'GET', '/1.0/user')).status === 200
  await apply(api.database, aRegion({ users: [{ ...ada, name: 'Augusta' }, grace] }))
  t.strictSame([await isValid(tokens.ada), await isValid(tokens.grace)], [true, true])
  for (const [change, totp_last_step] of [[{ totp_secret_file: 'ada.totp' }, null], [{ password_hash: grace.password_hash! }, 7]] as const) {
    const token = await api.userToken(ADA)
    await tables.updateTable('users').set({ totp_last_step: 7 }).where('id', '=', ADA).execute()
    await apply(api.database, aRegion({ users: [{ ...ada, ...change }, grace] }))
    await until(async () => !await isValid(token), 'the token to end', 5000)
    t.ok(await isValid(tokens.grace))
    t.strictSame(await tables.selectFrom('users').select('totp_last_step').where('id', '=', ADA).execute(), [{ totp_last_step }])
    await apply(api.database, aRegion())
  }
})

t.test('applications come from the file, and are pruned with the tokens of their users', async (t) => {
  const application = { id: 'app-file1', account: ONE, name: 'Dashboard', secret_file: 'app-file1.secret' }
  t.strictSame(await apply(api.database, aRegion({ applications: [application] })), ['+ application app-file1'])
  t.strictSame(await apply(api.database, aRegion({ applications: [application] })), [])
  t.strictSame(await apply(api.database, aRegion({ applications: [{ ...application, secret_file: 'other.secret' }] })), ['~ application app-file1: secret_sha256'])
  const { id } = await tables.insertInto('token_families').values({ application_id: 'app-file1', user_id: ADA, scopes: [] }).returning('id').executeTakeFirstOrThrow()
  await tables.deleteFrom('applications').where('id', '!=', 'app-file1').execute() // that of userToken
  t.strictSame(await apply(api.database, aRegion(), true), ['- application app-file1'])
  t.strictSame(await tables.selectFrom('token_families').select('id').where('id', '=', id).execute(), [])
})

t.test('a secret that was reset stays, until the file has another', async (t) => {
  const { api_clients: [client, ...others] } = aRegion()
  const secretOf = async () => (await tables.selectFrom('api_clients').select('secret_sha256').where('id', '=', client!.id).executeTakeFirstOrThrow()).secret_sha256!.toString()
  await tables.updateTable('api_clients').set({ secret_sha256: Buffer.from('reset') }).where('id', '=', client!.id).execute()
  t.strictSame(await apply(api.database, aRegion()), [])
  t.equal(await secretOf(), 'reset')
  t.strictSame(await apply(api.database, aRegion({ api_clients: [{ ...client!, secret_file: 'other.secret' }, ...others] })), [`~ api client ${client!.id}: secret_sha256`])
  t.not(await secretOf(), 'reset')
  t.strictSame(await apply(api.database, aRegion()), [`~ api client ${client!.id}: secret_sha256`])
})

t.test('clients and applications that were made with the API are pruned only with their account', async (t) => {
  const { accounts, api_clients } = aRegion()
  const more = { accounts: [...accounts, { ...accounts[1]!, id: 'acc-more4', collaborators: [] }], api_clients: [...api_clients, { id: 'cli-more4', account: 'acc-more4', name: 'of the file' }] }
  await apply(api.database, aRegion(more))
  const made = { account_id: 'acc-more4', name: '', description: '', secret_sha256: null }
  await tables.insertInto('api_clients').values([{ ...made, id: 'cli-api01', permissions_group: 'full', revoked_at: null }, { ...made, id: 'cli-api02', permissions_group: 'full', revoked_at: new Date() }]).execute()
  await tables.insertInto('applications').values({ ...made, id: 'app-api01' }).execute()
  t.strictSame(await apply(api.database, aRegion({ ...more, api_clients }), true), ['- api client cli-more4'])
  t.strictSame(await apply(api.database, aRegion(), true), ['- account acc-more4'])
})

t.test('a full pool that is widened gives the addresses that nobody has', async (t) => {
  const narrow = { mac: ['02:24:19:00:00:04/46'], private_ipv4: ['10.9.0.4/30'], public_ipv4: ['203.0.113.4/30'], public_ipv6: ['2001:db8:1::4/126'] }
  const wide = { mac: ['02:24:19:00:00:00/45'], private_ipv4: ['10.9.0.0/29'], public_ipv4: ['203.0.113.0/29'], public_ipv6: ['2001:db8:1::/125'] }
  const accounts = aRegion().accounts.map((account) => ({ ...account, cloud_ips_limit: 9 }))
  const { call, database } = await anApi(t, { region: aRegion({ accounts, address_pools: narrow }) })
  const create = async () => [(await call('POST', '/1.0/servers', { image: 'img-deb12' })).status, (await call('POST', '/1.0/cloud_ips')).status]
  t.strictSame([await create(), await create(), await create()], [[202, 201], [202, 201], [503, 503]])
  t.strictSame(await apply(database, aRegion({ accounts, address_pools: wide })), Object.entries(wide).map(([kind, [range]]) => `+ address pool ${kind} ${range!}`))
  t.strictSame([await create(), await create(), await create(), await create(), await create()], [[202, 201], [202, 201], [202, 201], [202, 201], [503, 503]])
})

/** The id that the sequence gives after another one. */
function nextAfter(id: string): string {
  for (let number = 1; number < 100; number++) if (formatId('grp', number) === id) return formatId('grp', number + 1)
  throw new Error(`${id} is not an early id`)
}

t.test('what users set themselves stays, unless the file gives it', async (t) => {
  const { users: [ada, grace] } = aRegion()
  const { ssh_key, ...own } = ada!
  await apply(api.database, aRegion())
  await tables.updateTable('users').set({ ssh_key: 'ssh-rsa AAAA own' }).where('id', '=', own.id).execute()
  t.strictSame(await apply(api.database, aRegion({ users: [own, grace!] })), [], 'a key that the user has set')
  await tables.updateTable('users').set({ ssh_key: null, messaging_pref: false }).where('id', '=', own.id).execute()
  t.strictSame(await apply(api.database, aRegion({ users: [own, grace!] })), [])
  t.strictSame(await apply(api.database, aRegion()), [`~ user ${own.id}: ssh_key null -> ${ssh_key!}`])
  t.strictSame(await apply(api.database, aRegion({ users: [{ ...ada!, ssh_key: '' }, grace!] })), [`~ user ${own.id}: ssh_key ${ssh_key!} -> null`])
})

t.test('the address and VAT number that an account was given by a PUT stay, unless the file gives them', async (t) => {
  const { accounts: [one, two] } = aRegion()
  await apply(api.database, aRegion())
  await tables.updateTable('accounts').set({ county: 'Yorkshire', city: 'Leeds', vat_registration_number: 'DE136695976', name: 'Other' }).where('id', '=', one!.id).execute()
  t.strictSame(await apply(api.database, aRegion()), [`~ account ${one!.id}: name Other -> Analytical Engines, city Leeds -> London`])
  t.strictSame(await apply(api.database, aRegion({ accounts: [{ ...one!, county: '', vat_registration_number: 'FR40303265045' }, two!] })),
    [`~ account ${one!.id}: county Yorkshire -> , vat_registration_number DE136695976 -> FR40303265045`])
})
