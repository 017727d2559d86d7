/**
 * The nftables table of imds: replaces it in one transaction, and checks that no other program has changed it.
 *
 * A transaction that nft refuses changes nothing. No packet passes between the old table and the new one.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { COUNTERS, parsePackets, type Packets } from '../../imdsd/firewall/counters.ts'
import {
  compareListing,
  REMOVAL,
  replacement,
  type Counted,
  type FirewallRules,
  type ListedObject,
} from '../../imdsd/firewall/rules.ts'
import { TABLE } from '../../imdsd/firewall/base-rules.ts'

/** The most attempts to apply rules while another program keeps changing them. */
const MAX_ATTEMPTS = 5

/**
 * The table as this process has applied it. Another program may change it between a transaction and the listing that
 * follows. The listing must have the elements of the rules. How nft lists the rest is not known in
 * advance: with new base rules the transaction is repeated until two listings are equal.
 */
export class Table {
  #rules: FirewallRules | undefined
  #frame: { readonly baseRules: string; readonly listed: string } | undefined
  /** The highest value of each counter. A new table begins with it, so that none goes back. */
  #counted: ReadonlyMap<string, Counted> = new Map()

  /** The version of the rules that were applied last. */
  get version(): string | undefined {
    return this.#rules?.version
  }

  /** Replaces the table. Rejects with nft's message; if nft has refused the rules, the last ones stay. */
  async apply(rules: FirewallRules): Promise<void> {
    this.#count(await list('counters'))
    for (let tries = 0; tries < MAX_ATTEMPTS; tries++) {
      await transact(replacement(rules, this.#counted))
      this.#rules = rules
      const { hasElements, frame } = compareListing(await this.#list(), rules)
      const isKnown = this.#frame?.baseRules === rules.baseRules && this.#frame.listed === frame
      if (hasElements && isKnown) return
      this.#frame = { baseRules: rules.baseRules, listed: frame }
    }
    this.#frame = undefined
    throw new Error('another program keeps changing the rules while they are applied')
  }

  /** True if the kernel has the rules that were applied last, and no others in the table. */
  async isWhole(): Promise<boolean> {
    const rules = this.#rules
    if (rules === undefined) return true
    const { hasElements, frame } = compareListing(await this.#list(), rules)
    return hasElements && frame === this.#frame?.listed
  }

  /** Applies the last rules again. */
  async restore(): Promise<void> {
    if (this.#rules !== undefined) await this.apply(this.#rules)
  }

  /** What the counters had when the table was last read; undefined if there never was a table with all of them. */
  packets(): Packets | undefined {
    return parsePackets(Object.fromEntries([...this.#counted].map(([name, { packets }]) => [name, packets])))
  }

  async #list(): Promise<readonly ListedObject[]> {
    const listing = await list('table')
    this.#count(listing)
    return listing
  }

  #count(listing: readonly ListedObject[]): void {
    const now = new Map(listing.flatMap(({ counter }) => (counter === undefined ? [] : [[counter.name, counter]])))
    this.#counted = new Map(
      COUNTERS.flatMap((name) => {
        const [before, read] = [this.#counted.get(name), now.get(name)]
        const highest = before !== undefined && before.packets > (read?.packets ?? -1) ? before : read
        return highest === undefined ? [] : [[name, highest]]
      }),
    )
  }
}

/** Deletes the table, whether it exists or not. */
export async function removeTable(): Promise<void> {
  await transact(REMOVAL)
}

async function transact(text: string): Promise<void> {
  const { status, stderr } = await nft(['-f', '-'], text)
  if (status !== 0) throw failureOf(status, stderr)
}

/**
 * Lists the table, or its counters only; empty if there is none. As JSON, since nft writes other forms word by word, which
 * takes three times as long.
 */
async function list(what: 'table' | 'counters'): Promise<readonly ListedObject[]> {
  const args = what === 'table' ? [what] : [what, 'table']
  const { status, stdout, stderr } = await nft(['-j', 'list', ...args, ...TABLE.split(' ')], '')
  if (status === 0) return (JSON.parse(stdout) as { nftables: ListedObject[] }).nftables
  if (stderr.includes('No such file or directory')) return []
  throw failureOf(status, stderr) // it may have been built without JSON
}

function failureOf(status: number | undefined, stderr: string): Error {
  return new Error(
    status === undefined ? 'nft was ended by a signal' : `nft: ${stderr.trim().split('\n', 3).join(' ')}`,
  )
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
