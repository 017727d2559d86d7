/** Creates cloud IPs, within the limit of their account. */
import { refuse } from '../model/refusal.ts'
import { allocateAddress, countKept, nextId } from './allocate.ts'
import { lockAccount, usageOf } from './limits.ts'
import type { Tx } from '../database/transaction.ts'

/** Says why a reserved or mapped cloud IP can be neither mapped nor deleted, and what to do. */
export function takenFault(id: string, status: 'reserved' | 'mapped'): string {
  return status === 'mapped'
    ? `${id} is mapped: unmap it first`
    : `${id} is reserved for a server that is being created: wait until that server is active, or delete it`
}

/** Creates an unmapped cloud IP for an account, within its limit, and returns its id. Locks the account. */
export async function createCloudIp(tx: Tx, accountId: string): Promise<string> {
  const account = (await lockAccount(tx, accountId))!
  const { cloud_ips_used: used } = await usageOf(tx, accountId)
  if (used >= account.cloud_ips_limit)
    throw refuse(
      'account_limit_reached',
      `the account has ${String(used)} cloud IPs, and its limit is ${String(account.cloud_ips_limit)}`,
    )
  const kept = await countKept(tx, accountId)
  if (used + kept >= 2 * account.cloud_ips_limit) {
    // otherwise an account that creates and deletes them while the store is away would take the whole pool
    throw refuse(
      'service_unavailable',
      `${String(kept)} cloud IPs that were deleted keep their addresses until the changes of servers are published: try again`,
    )
  }
  const id = await nextId(tx, 'cip')
  const [ipv4, ipv6] = [await allocateAddress(tx, 'public_ipv4', id), await allocateAddress(tx, 'public_ipv6', id)]
  if (ipv4 === undefined || ipv6 === undefined)
    throw refuse('insufficient_capacity', 'the region has no free public address')
  await tx
    .insertInto('cloud_ips')
    .values({
      id,
      account_id: accountId,
      name: '',
      public_ipv4: ipv4.address,
      public_ipv6: ipv6.address,
      reverse_dns: null,
      port_translators: '[]',
      status: 'unmapped',
      interface_id: null,
      server_group_id: null,
    })
    .execute()
  return id
}
