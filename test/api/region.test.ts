/** Applying a region file to a database: the difference, what --prune deletes, and what changes for guests. */
import t from 'tap'
import { formatId } from '../../src/api/model/ids.ts'
import { InUse } from '../../src/api/region/apply.ts'
import type { RegionFile } from '../../src/api/region/schema.ts'
import { aRegion, ONE } from '../support/fixtures/region.ts'
import { anApi, apply } from '../support/programs/api.ts'

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

/** The id that the sequence gives after another one. */
function nextAfter(id: string): string {
  for (let number = 1; number < 100; number++) if (formatId('grp', number) === id) return formatId('grp', number + 1)
  throw new Error(`${id} is not an early id`)
}

t.test('what users set themselves stays, unless the file gives it', async (t) => {
  const { users: [ada, grace] } = aRegion()
  const { ssh_key, ...own } = ada!
  await apply(api.database, aRegion())
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
