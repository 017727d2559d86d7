/** Faults of a region file beyond its schema: values given twice, references to nothing, malformed values. */
import { isPasswordHash } from '../auth/password.ts'
import { ENDED_STATES } from '../model/account-states.ts'
import { isEmailAddress } from '../model/email-address.ts'
import { overlap, parseRange, POOL_KINDS } from '../model/pools.ts'
import { ipv6Faults } from '../model/server-ipv6.ts'
import { parseSshKeys } from '../model/ssh-key.ts'
import type { RegionFile } from './schema.ts'

/** Returns every fault of a file that has the form of the schema. */
export function findContradictions(file: RegionFile): readonly string[] {
  return [...duplicates(file), ...references(file), ...formats(file)]
}

/** Values that must be unique in the database. */
function duplicates(file: RegionFile): string[] {
  const { zones, server_types, images, users, address_pools } = file
  const optional = [file.applications, file.database_server_types, file.database_servers].map((list) => list ?? [])
  const lists = [
    [zones, server_types, images, users, file.accounts, file.api_clients, ...optional].flat().map(({ id }) => id),
    file.hypervisors.map(({ name }) => name),
    ...[zones, server_types, images].map((list) => list.flatMap(({ handle }) => handle ?? [])),
    users.map(({ email_address }) => email_address.toLowerCase()),
    ...POOL_KINDS.map((kind) => address_pools[kind]),
  ]
  return lists.flatMap(repeated).map((text) => `${text} is given twice`)
}

function repeated(list: readonly string[]): string[] {
  const once = new Set(list)
  return [...new Set(list.filter((text) => !once.delete(text)))]
}

/** Entries with a reference that is missing in the file, or not allowed. */
function references(file: RegionFile): string[] {
  const { zones, hypervisors, accounts, users, api_clients, images } = file
  const { applications = [], database_server_types = [], database_servers = [] } = file
  const idsOf = (entries: readonly { readonly id: string }[]) => new Set(entries.map(({ id }) => id))
  const names = {
    zones: new Set(zones.map(({ handle }) => handle)),
    users: idsOf(users),
    accounts: idsOf(accounts),
    database_server_types: idsOf(database_server_types),
  }
  const missing = (text: string, name: string, list: keyof typeof names) =>
    names[list].has(name) ? [] : [`${text} ${name}, which ${list} does not have`]
  const used = accounts.filter(({ status = 'active' }) => !ENDED_STATES.includes(status))
  const firstOf = new Map(used.toReversed().map(({ id, owner }) => [owner, id]))
  const publishers = new Set(accounts.filter(({ publish_images }) => publish_images === true).map(({ id }) => id))
  return [
    ...hypervisors.flatMap(({ name, zone }) => missing(`hypervisors: ${name} is in the zone`, zone, 'zones')),
    ...accounts.flatMap(({ id, owner, collaborators = [] }) =>
      [owner, ...collaborators].flatMap((user) => missing(`accounts: ${id} names`, user, 'users')),
    ),
    ...used
      .filter(({ id, owner }) => firstOf.get(owner) !== id)
      .map(
        ({ id, owner }) =>
          `accounts: ${owner} owns ${firstOf.get(owner)!} and ${id}, ` +
          'and a user owns one account that is not closed or deleted',
      ),
    ...api_clients.flatMap(({ id, account }) => missing(`api_clients: ${id} belongs to`, account, 'accounts')),
    ...applications.flatMap(({ id, account }) => missing(`applications: ${id} belongs to`, account, 'accounts')),
    ...images.flatMap(({ id, account }) =>
      account === undefined ? [] : missing(`images: ${id} belongs to`, account, 'accounts'),
    ),
    ...images.flatMap(({ id, account, public: isPublic }) =>
      isPublic === true && account !== undefined && names.accounts.has(account) && !publishers.has(account)
        ? [`images: ${id} is public, and its account ${account} has no publish_images: true`]
        : [],
    ),
    ...database_servers.flatMap(({ id, account, zone, database_server_type: type }) => [
      ...missing(`database_servers: ${id} belongs to`, account, 'accounts'),
      ...missing(`database_servers: ${id} is in the zone`, zone, 'zones'),
      ...missing(`database_servers: ${id} has the type`, type, 'database_server_types'),
    ]),
  ]
}

/** Values whose form the schema cannot show. */
function formats({ address_pools, users }: RegionFile): string[] {
  return [
    ...POOL_KINDS.flatMap((kind) =>
      address_pools[kind].flatMap((range) => {
        const parsed = parseRange(kind, range)
        return parsed.ok ? [] : parsed.faults.map((fault) => `address_pools.${kind}: ${fault}`)
      }),
    ),
    ...overlaps(address_pools),
    ...ipv6Networks(address_pools).map((fault) => `address_pools.ipv6: ${fault}`),
    ...users
      .filter(({ email_address }) => !isEmailAddress(email_address))
      .map(({ id }) => `users: ${id} has an email_address that is not one`),
    ...users.flatMap(({ id, ssh_key = '' }) => {
      const parsed = parseSshKeys(ssh_key)
      return parsed.ok ? [] : parsed.faults.map((fault) => `users: the ssh_key of ${id} ${fault}`)
    }),
    ...users
      .filter(({ password_hash }) => password_hash !== undefined && !isPasswordHash(password_hash))
      .map(
        ({ id }) => `users: ${id} has a password_hash that is not one of scrypt such as $scrypt$ln=15,r=8,p=3$SALT$KEY`,
      ),
    ...users
      .filter(({ password_file, password_hash }) => password_file !== undefined && password_hash !== undefined)
      .map(({ id }) => `users: ${id} has a password_file and a password_hash: keep one of them`),
  ]
}

function ipv6Networks({ ipv6 = {}, private_ipv4, public_ipv6 }: RegionFile['address_pools']): string[] {
  const given = Object.entries(ipv6).map(([range, network]) => ({ range, network }))
  return [
    ...given.filter(({ range }) => !private_ipv4.includes(range)).map(({ range }) => `private_ipv4 has no ${range}`),
    ...ipv6Faults(given, public_ipv6),
  ]
}

/** Ranges of one kind that overlap: an address in both could be given twice. */
function overlaps(pools: RegionFile['address_pools']): string[] {
  return POOL_KINDS.flatMap((kind) => {
    const ranges = [...new Set(pools[kind])].flatMap((text) => {
      const parsed = parseRange(kind, text)
      return parsed.ok ? [{ text, range: parsed.value }] : []
    })
    return ranges.flatMap((one, i) =>
      ranges
        .slice(i + 1)
        .filter((other) => overlap(one.range, other.range))
        .map((other) => `address_pools.${kind}: ${one.text} and ${other.text} overlap`),
    )
  })
}
