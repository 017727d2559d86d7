/** The network interfaces of servers, and their addresses. handshake.ts deletes them with the record. */
import { sql, type Insertable } from 'kysely'
import { refuse } from '../model/refusal.ts'
import { ipv6Faults, ipv6OfServer } from '../model/server-ipv6.ts'
import { markChanged } from '../database/outbox.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import { allocateAddress, ipv6NetworkOf, lockPools, nextId, readPools } from './allocate.ts'

/** The interface of a new server, with its addresses: the row, to be added. */
export async function allocateInterface(
  tx: Tx,
  serverId: string,
): Promise<Insertable<Tables['interfaces']> & { readonly id: string }> {
  const id = await nextId(tx, 'int')
  const [mac, ipv4] = [await allocateAddress(tx, 'mac', id), await allocateAddress(tx, 'private_ipv4', id)]
  if (mac === undefined || ipv4 === undefined)
    throw refuse('insufficient_capacity', 'the region has no free private address')
  // after the allocation, whose foreign key makes giveIpv6Addresses wait for this transaction, or this one for it
  const network = ipv6NetworkOf(await readPools(tx, ['private_ipv4']), ipv4.address)
  const ipv6 = network === undefined ? undefined : ipv6OfServer(network, mac.address, ipv4.address)
  return {
    id,
    server_id: serverId,
    mac_address: mac.address,
    ipv4_address: ipv4.address,
    ipv4_prefix_length: ipv4.prefixLength ?? null,
    ...(ipv6 && { ipv6_address: ipv6.address, ipv6_prefix: ipv6.prefix ?? null }),
  }
}

/**
 * Gives the interfaces that have none an IPv6 address, where the region has a network for them, and publishes their
 * servers. Returns a line for people. `hasOthers`: networks were changed. Rejects if servers have addresses of the
 * networks before, or if the networks of the database contradict each other: it also has ranges that the file no longer
 * has.
 */
export async function giveIpv6Addresses(tx: Tx, hasOthers: boolean): Promise<readonly string[]> {
  const pools = await lockPools(tx, ['private_ipv4', 'public_ipv6'])
  const given = pools.flatMap(({ text: range, ipv6Network: network }) => (network === null ? [] : [{ range, network }]))
  const others = pools.filter(({ kind }) => kind === 'public_ipv6').map(({ text }) => text)
  const [fault] = ipv6Faults(given, others)
  if (fault !== undefined) throw new Error(`the IPv6 networks of the database: ${fault}. Nothing was changed`)
  if (given.length === 0 && !hasOthers) return []
  const interfaces = await tx
    .selectFrom('interfaces')
    .select(['id', 'server_id', 'mac_address', 'ipv4_address', 'ipv6_address', 'ipv6_prefix'])
    .where(hasOthers ? sql<boolean>`true` : sql<boolean>`ipv6_address is null`)
    .execute()
  const rows = interfaces.map((one) => {
    const network = ipv6NetworkOf(pools, one.ipv4_address)
    return {
      ...one,
      ipv6: network === undefined ? undefined : ipv6OfServer(network, one.mac_address, one.ipv4_address),
    }
  })
  const [kept, ...alsoKept] = rows.filter(
    (row) =>
      row.ipv6_address !== null &&
      (row.ipv6_address !== row.ipv6?.address || (row.ipv6_prefix ?? undefined) !== row.ipv6.prefix),
  )
  if (kept !== undefined)
    throw new Error(
      `${kept.server_id} (${kept.ipv4_address}${alsoKept.length > 0 ? `, and ${alsoKept.length} more` : ''}) has ` +
        `the IPv6 address ${kept.ipv6_address!} of the network before: give its range the same network again ` +
        '(address_pools.ipv6), or delete the server first. Nothing was changed',
    )
  const added = rows.flatMap(({ ipv6, ...row }) => (row.ipv6_address === null && ipv6 ? [{ ...row, ...ipv6 }] : []))
  if (added.length === 0) return []
  await markChanged(
    tx,
    added.map((row) => row.server_id),
  )
  await sql`
    update interfaces set ipv6_address = added.address, ipv6_prefix = added.prefix
    from unnest(
      ${added.map(({ id }) => id)}::text[],
      ${added.map((row) => row.address)}::text[],
      ${added.map((row) => row.prefix)}::text[]
    ) as added(id, address, prefix)
    where interfaces.id = added.id`.execute(tx)
  return [`+ IPv6 addresses of ${added.length} servers`]
}
