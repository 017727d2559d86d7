/**
 * `imdsctl list`: the instances in the store, or those that were removed, as a table or as JSON lines.
 *
 * The store's index has every field but the account. So a filter by account reads the records, which takes longer.
 */
import { canonicalAddress, isIpv6Prefix, overlap } from '../metadata/address.ts'
import { parse } from '../metadata/record.ts'
import { formatAgo } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { forEachOf } from '../limits/for-each-of.ts'
import { StoreUnavailable, type Listed, type Publisher } from '../store/publisher.ts'
import { MAX_IN_FLIGHT, withStore, type Context } from './commands.ts'

/**
 * Which instances are listed, and how. An instance has to pass all filters. `removed`: lists tombstones in place of
 * instances. `ids`: prints only ids, one per line. `count`: prints only how many there are.
 */
export interface ListOptions {
  readonly hypervisor?: string
  readonly account?: string
  readonly address?: string
  readonly sealed?: boolean
  readonly removed?: boolean
  readonly ids?: boolean
  readonly count?: boolean
}

/** One line to print: `cells` are its row in the table. */
interface ListLine {
  readonly json: { readonly id: string }
  readonly cells: readonly string[]
}

/** Prints the list. Resolves with the exit status: faulty data if an account could not be read. */
export async function list({ store, output }: Context, options: ListOptions): Promise<number> {
  const inIndex = indexFilter(options)
  return withStore(store, async (publisher) => {
    if (options.removed === true) {
      const entries = (await publisher.tombstones()).map((removed) => ({
        json: removed,
        cells: [removed.id, String(removed.revision), formatSeal(removed.sealedAt)],
      }))
      const text = `${entries.length} removed in the last 7 days`
      print(output, ['ID', 'REVISION', 'SEALED'], entries, options, { removed: entries.length }, text)
      return EXIT.done
    }
    const all = await publisher.list()
    const found = all.filter(inIndex)
    const { account } = options
    const unread: string[] = []
    const listed = account === undefined ? found : await ofAccount(publisher, found, account, unread)
    const entries = listed.map((instance) => ({ json: instance, cells: cellsOf(instance) }))
    const sealed = listed.filter(({ sealedAt }) => sealedAt !== undefined).length
    const [instances, of] = [listed.length, all.length]
    const text = `${instances === of ? '' : `${instances} of `}${of} instances, ${sealed} sealed`
    const header = ['ID', 'REVISION', 'HYPERVISORS', 'SEALED', 'ADDRESSES']
    print(output, header, entries, options, { instances, of, sealed }, text)
    for (const id of unread) output.warn(`the record of ${id} cannot be read: its account is not known`)
    return unread.length > 0 ? EXIT.badData : EXIT.done
  })
}

/** The filters that need no record. Throws a usage Failure if the address is none. */
function indexFilter({ hypervisor, sealed, address }: ListOptions): (instance: Listed) => boolean {
  const range = address === undefined ? undefined : (canonicalAddress(address) ?? address)
  if (range !== undefined && canonicalAddress(range) === undefined && !isIpv6Prefix(range))
    throw new CommandFailure(EXIT.usage, `"${range}" is neither an address nor an IPv6 prefix in its shortest form`)
  return ({ hypervisors, addresses, sealedAt }) =>
    (hypervisor === undefined || hypervisors.includes(hypervisor)) &&
    (sealed !== true || sealedAt !== undefined) &&
    (range === undefined || addresses.some((text) => overlap(text.slice(text.indexOf(' ') + 1), range)))
}

/** Returns the instances of an account, by their records. Adds the ids of those that cannot be read to `unread`. */
async function ofAccount(
  publisher: Publisher,
  listed: readonly Listed[],
  account: string,
  unread: string[],
): Promise<readonly Listed[]> {
  const ids = new Set<string>()
  const read = async ({ id }: Listed) => {
    try {
      const published = await publisher.get(id)
      if (published === undefined) return // removed meanwhile
      const parsed = parse(published.document)
      if (!parsed.ok) unread.push(id)
      else if (parsed.value.account === account) ids.add(id)
    } catch (error) {
      if (error instanceof StoreUnavailable) throw error
      unread.push(id)
    }
  }
  await forEachOf(listed, read, MAX_IN_FLIGHT)
  return listed.filter(({ id }) => ids.has(id))
}

function cellsOf({ id, revision, hypervisors, sealedAt, addresses }: Listed): readonly string[] {
  return [id, String(revision), hypervisors.join(','), formatSeal(sealedAt), addresses.join(', ')]
}

function formatSeal(sealedAt: string | undefined): string {
  return sealedAt === undefined ? '-' : formatAgo(sealedAt, Date.now())
}

/** Prints entries in the form of the options. A table ends with the counts. */
function print(
  output: Output,
  header: readonly string[],
  entries: readonly ListLine[],
  { ids, count }: ListOptions,
  counts: object,
  text: string,
): void {
  if (count === true) output.result(counts, text)
  else if (output.json) for (const { json } of entries) output.printJson(json)
  else if (ids === true) for (const { json } of entries) output.print(json.id)
  else {
    output.table(
      header,
      entries.map(({ cells }) => cells),
    )
    output.print(text)
  }
}
