/** Reads which ids, revisions and addresses the store has, to compare a restored database with it. Writes nothing. */
import { parseStored } from '../../metadata/record.ts'
import { splitPrefix } from '../../metadata/address.ts'
import { forEachOf } from '../../limits/for-each-of.ts'
import { ifThere } from '../../runtime/regular-file.ts'
import { StoreUnavailable, type Listed, type Publisher } from '../../store/publisher.ts'
import type { StoredAddress, StoredServer, StoreSurvey } from '../changes/advance.ts'

/** Records that are read at the same time. */
const MAX_CONCURRENT_READS = 16
/** The network of every interface that imds-api publishes. */
const NETWORK = 'default'

/**
 * Reads the store. `unreadable`: ids of records that cannot be read; only what the index says of them is known. Rejects
 * if the store cannot be used.
 */
export async function surveyStore(
  store: Pick<Publisher, 'list' | 'get' | 'tombstones'>,
): Promise<StoreSurvey & { readonly unreadable: readonly string[] }> {
  const listed = await emptyIfAbsent(store.list())
  const ids = new Set((await emptyIfAbsent(store.tombstones())).map(({ id }) => id))
  const servers: StoredServer[] = []
  const unreadable: string[] = []
  const add = async (one: Listed) => {
    const read = await readServer(store, one)
    if (read === 'gone') return
    if (read === 'unreadable') {
      unreadable.push(one.id)
      servers.push({ id: one.id, account: undefined, revision: one.revision, addresses: addressesOf(one) })
      ids.add(one.id)
    } else {
      servers.push(read.server)
      for (const id of read.ids) ids.add(id)
    }
  }
  await forEachOf(listed, add, MAX_CONCURRENT_READS)
  return { servers: servers.sort((a, b) => (a.id < b.id ? -1 : 1)), ids, unreadable: unreadable.sort() }
}

async function readServer(
  store: Pick<Publisher, 'get'>,
  { id }: Listed,
): Promise<{ readonly server: StoredServer; readonly ids: readonly string[] } | 'gone' | 'unreadable'> {
  const published = await store.get(id).catch((error: unknown) => {
    if (error instanceof StoreUnavailable) throw error
    return 'unreadable' as const
  })
  if (published === 'unreadable') return published
  if (published === undefined) return 'gone'
  const parsed = parseStored(published.document)
  if (!parsed.ok) return 'unreadable'
  const { account, revision, image, interfaces, serverGroups } = parsed.value
  const addresses = interfaces
    .filter(({ network }) => network === NETWORK)
    .flatMap(({ macAddress, ipv4Addresses, cloudIps }): StoredAddress[] => [
      { kind: 'mac', address: macAddress },
      ...ipv4Addresses.map((address) => ({ kind: 'private_ipv4', address: splitPrefix(address).address }) as const),
      ...cloudIps.flatMap(({ publicIpv4, publicIpv6 }) => [
        { kind: 'public_ipv4', address: publicIpv4 } as const,
        ...(publicIpv6 === undefined ? [] : [{ kind: 'public_ipv6', address: publicIpv6 } as const]),
      ]),
    ])
  const ids = [
    id,
    image,
    ...serverGroups.map((group) => group.id),
    ...interfaces.flatMap((one) => [one.id, ...one.cloudIps.map((cloudIp) => cloudIp.id)]),
  ]
  return { server: { id, account, revision, addresses }, ids }
}

function addressesOf({ addresses }: Listed): StoredAddress[] {
  return addresses
    .filter((text) => text.startsWith(`${NETWORK} `) && !text.includes(':'))
    .map((text) => ({ kind: 'private_ipv4', address: text.slice(NETWORK.length + 1) }))
}

/** A directory of files that does not exist yet has nothing. */
export async function emptyIfAbsent<T>(list: Promise<readonly T[]>): Promise<readonly T[]> {
  return (await ifThere(list)) ?? []
}
