/**
 * Our table in the kernel: put there by one transaction at a time, and looked at again.
 *
 * A transaction that nft refuses changes nothing. The elements alone are exchanged where the rest is as it was, so that what the kernel
 * counts and remembers stays.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { change, listed, REMOVAL, replacement, type EdgeRules } from '../edge/rules.ts'
import { hopListing, TABLE } from '../edge/skeleton.ts'

/** What guests' packets change by themselves. */
const DYNAMIC = /^\tset opened \{\n.*?^\t\}\n/gms

/** What is in a set or a map. */
const ELEMENTS = /elements = \{([^}]*)\}/g

/** Rules that come out different each time are put there no more often than so. */
const MOST_TRIES = 5

/**
 * The table as this process has put it there. What somebody changes between a transaction and our look at it must not pass for ours: a
 * replacement counts once two of them came out the same, a change once all but elements and the chains of further hop limits is as it was.
 */
export class Table {
  #rules: EdgeRules | undefined
  #listing = ''

  /** Makes the table that of these rules. Rejects with nft's own words. */
  async apply(rules: EdgeRules): Promise<void> {
    const before = this.#rules
    this.#rules = undefined
    const isChange = before?.skeleton === rules.skeleton && before.limitedDscp === rules.limitedDscp
    if (!isChange || !await this.#change(before, rules)) await this.#replace(rules)
    this.#rules = rules
  }

  async #replace(rules: EdgeRules): Promise<void> {
    this.#listing = ''
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      await transact(replacement(rules))
      const listing = await list()
      if (listing !== '' && sorted(listing) === sorted(this.#listing)) return
      this.#listing = listing
    }
    throw new Error('somebody changes the rules as often as they are put there')
  }

  /** False when it did not come out as it should: somebody else was at it. */
  async #change(before: EdgeRules, after: EdgeRules): Promise<boolean> {
    const statements = change(before, after)
    if (statements === '') return true
    try {
      await transact(statements)
    } catch {
      return false
    }
    const [was, is] = [this.#listing, await list()]
    this.#listing = is
    const added = after.hops.difference(before.hops)
    const frame = (listing: string) => frameOf(listing, added, after.limitedDscp)
    return elementsOf(is).join() === listed(after).join() && frame(is) === frame(was)
  }

  /** Puts it back as it was applied last, if somebody has changed it. True when that was needed. */
  async restore(): Promise<boolean> {
    const rules = this.#rules
    if (rules === undefined || sorted(await list()) === sorted(this.#listing)) return false
    this.#rules = undefined
    await this.apply(rules)
    return true
  }
}

/** Takes the table away, whether it is there or not. */
export async function removeTable(): Promise<void> {
  await transact(REMOVAL)
}

async function transact(text: string): Promise<void> {
  const { status, stderr } = await nft(['-f', '-'], text)
  if (status !== 0) throw new Error(`nft: ${stderr.trim().split('\n', 3).join(' ')}`)
}

/** What the table holds, without what changes by itself; empty when it is not there. */
async function list(): Promise<string> {
  const { status, stdout } = await nft(['--stateless', 'list', 'table', ...TABLE.split(' ')], '')
  return status === 0 ? stdout.replace(DYNAMIC, '') : ''
}

/** What is in the sets and maps of a listing, in alphabetical order. */
function elementsOf(listing: string): string[] {
  return [...listing.matchAll(ELEMENTS)].flatMap(([, inside = '']) => inside.split(',').map((element) => element.trim())).sort()
}

/** A listing without that, and without the chains of some hop limits as we have written them. */
function frameOf(listing: string, hops: Iterable<number>, limitedDscp: number): string {
  return sorted([...hops].reduce((rest, limit) => rest.replace(hopListing(limit, limitedDscp), ''), listing.replace(ELEMENTS, '')))
}

/** In an order of our own: the kernel has none. */
function sorted(listing: string): string {
  return listing.split(/[\s,]+/).sort().join(' ')
}

async function nft(args: readonly string[], input: string): Promise<{ status: number | null, stdout: string, stderr: string }> {
  const child = spawn('nft', args, { stdio: 'pipe' })
  child.stdin.on('error', () => { /* it did not want to read on: its status tells */ }).end(input)
  const text = async (stream: typeof child.stdout) => Buffer.concat(await (stream.toArray() as Promise<Buffer[]>).catch(() => [])).toString()
  const [[status], stdout, stderr] = await Promise.all([once(child, 'close') as Promise<[number | null]>, text(child.stdout), text(child.stderr)])
  return { status, stdout, stderr }
}
