/**
 * The nftables table of imds: applies rules in transactions, and checks that no other program changed them.
 *
 * A transaction that nft refuses changes nothing. If only elements differ, only elements are changed, so that counters
 * and dynamic sets keep their content.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { COUNTERS, parsePackets, type Packets } from '../../imdsd/firewall/counters.ts'
import {
  change,
  listed,
  REMOVAL,
  replacement,
  trial,
  type Counted,
  type FirewallRules,
} from '../../imdsd/firewall/rules.ts'
import { hopListing, TABLE } from '../../imdsd/firewall/base-rules.ts'

/** The set that packets of guests change. */
const DYNAMIC = /^\tset opened \{\n.*?^\t\}\n/gms

/** The elements of a set or a map. */
const ELEMENTS = /elements = \{([^}]*)\}/g

/** A counter in a listing. */
const COUNTER = /\bcounter (\w+) \{\s*packets (\d+) bytes (\d+)/g

/** The position in the input that each message of nft begins with. */
const PLACE = /\/dev\/stdin:[0-9:-]+ /g

/** The most attempts to apply rules while another program keeps changing them. */
const MAX_ATTEMPTS = 5

/** nft or the kernel does not accept a transaction, which has changed nothing. */
export class NftRefusal extends Error {}

/**
 * The table as this process has applied it. Another program may change it between a transaction and the listing that
 * follows. To detect that, a replacement is repeated until two listings are equal, and after a change of elements
 * everything else must be as before.
 */
export class Table {
  #rules: FirewallRules | undefined
  #listing = ''
  /** The highest value of each counter. A new table begins with it, so that none goes back. */
  #counted: ReadonlyMap<string, Counted> = new Map()

  /** Applies rules. Rejects with nft's message; after a Refusal nothing has changed. */
  async apply(rules: FirewallRules): Promise<void> {
    const before = this.#rules
    this.#rules = undefined
    const isChange = before?.baseRules === rules.baseRules && before.limitedDscp === rules.limitedDscp
    const outcome = isChange ? await this.#change(before, rules) : 'refused'
    if (outcome !== 'done') await this.#replace(rules, outcome === 'refused' ? before : undefined)
    this.#rules = rules
  }

  /** `before`: the rules that stay applied if nft refuses the first transaction. */
  async #replace(rules: FirewallRules, before: FirewallRules | undefined): Promise<void> {
    let last: string | undefined
    for (let tries = 0; tries < MAX_ATTEMPTS; tries++) {
      try {
        if (tries === 0) await this.#count()
        await transact(replacement(rules, this.#counted))
      } catch (error) {
        if (tries === 0 && error instanceof NftRefusal) this.#rules = before
        throw error
      }
      this.#listing = await list()
      const isThere = this.#listing !== '' // without the table, both listings would be empty and equal
      if (isThere && last !== undefined && sorted(this.#listing) === sorted(last)) return
      last = this.#listing
    }
    throw new Error('another program keeps changing the rules while they are applied')
  }

  /** `disturbed`: another program changed the table at the same time, so it differs from these rules. */
  async #change(before: FirewallRules, after: FirewallRules): Promise<'done' | 'refused' | 'disturbed'> {
    const statements = change(before, after)
    if (statements === '') return 'done'
    try {
      await transact(statements)
    } catch (error) {
      if (error instanceof NftRefusal) return 'refused'
      throw error
    }
    const [was, is] = [this.#listing, await list()]
    this.#listing = is
    const added = after.hops.difference(before.hops)
    const frame = (listing: string) => frameOf(listing, added, after.limitedDscp)
    return elementsOf(is).join() === listed(after).join() && frame(is) === frame(was) ? 'done' : 'disturbed'
  }

  /** Reads the counters; undefined if there never was a table with all of them. */
  async packets(): Promise<Packets | undefined> {
    await this.#count()
    return parsePackets(Object.fromEntries([...this.#counted].map(([name, { packets }]) => [name, packets])))
  }

  async #count(): Promise<void> {
    const { stdout } = await nft(['list', 'counters', 'table', ...TABLE.split(' ')], '')
    const now = new Map(
      [...stdout.matchAll(COUNTER)].map(([, name = '', packets, bytes]) => [
        name,
        { packets: Number(packets), bytes: Number(bytes) },
      ]),
    )
    this.#counted = new Map(
      COUNTERS.flatMap((name) => {
        const [before, read] = [this.#counted.get(name), now.get(name)]
        const highest = before !== undefined && before.packets > (read?.packets ?? -1) ? before : read
        return highest === undefined ? [] : [[name, highest]]
      }),
    )
  }

  /** Applies the last rules again if another program has changed the table. True if that was necessary. */
  async restore(): Promise<boolean> {
    const rules = this.#rules
    if (rules === undefined || sorted(await list()) === sorted(this.#listing)) return false
    this.#rules = undefined
    await this.apply(rules)
    return true
  }
}

/** nft's message if it would not accept these rules, or undefined. Changes nothing. */
export async function refusalOf(rules: FirewallRules): Promise<string | undefined> {
  try {
    await transact(trial(rules))
    return undefined
  } catch (error) {
    if (error instanceof NftRefusal) return error.message.replaceAll(PLACE, '')
    throw error
  }
}

/** Deletes the table, whether it exists or not. */
export async function removeTable(): Promise<void> {
  await transact(REMOVAL)
}

async function transact(text: string): Promise<void> {
  const { status, stderr } = await nft(['-f', '-'], text)
  if (status === undefined) throw new Error('nft was ended by a signal')
  if (status !== 0) throw new NftRefusal(`nft: ${stderr.trim().split('\n', 3).join(' ')}`)
}

/** Lists the table, without the set that packets change; empty if there is no table. */
async function list(): Promise<string> {
  const { status, stdout } = await nft(['--stateless', 'list', 'table', ...TABLE.split(' ')], '')
  return status === 0 ? stdout.replace(DYNAMIC, '') : ''
}

function elementsOf(listing: string): string[] {
  return [...listing.matchAll(ELEMENTS)]
    .flatMap(([, inside = '']) => inside.split(',').map((element) => element.trim()))
    .sort()
}

/** A listing without its elements, and without the chains of some hop limits as hopChain creates them. */
function frameOf(listing: string, hops: Iterable<number>, limitedDscp: number): string {
  return sorted(
    [...hops].reduce((rest, limit) => rest.replace(hopListing(limit, limitedDscp), ''), listing.replace(ELEMENTS, '')),
  )
}

/** Sorted, since the kernel lists in no fixed order. */
function sorted(listing: string): string {
  return listing
    .split(/[\s,]+/)
    .sort()
    .join(' ')
}

/** Runs nft. `status` is undefined if a signal ended it. */
async function nft(
  args: readonly string[],
  input: string,
): Promise<{ status: number | undefined; stdout: string; stderr: string }> {
  const child = spawn('nft', args, { stdio: 'pipe' })
  child.stdin
    .on('error', () => undefined) // nft stopped reading: its exit status says why
    .end(input)
  const text = async (stream: typeof child.stdout) =>
    Buffer.concat(await (stream.toArray() as Promise<Buffer[]>).catch(() => [])).toString()
  const [[status], stdout, stderr] = await Promise.all([
    once(child, 'close') as Promise<[unknown]>,
    text(child.stdout),
    text(child.stderr),
  ])
  return { status: typeof status === 'number' ? status : undefined, stdout, stderr }
}
