/**
 * Our table in the kernel: put there by one transaction at a time, and looked at again.
 *
 * A transaction that nft refuses changes nothing. The elements alone are exchanged where the rest is as it was, so that what the kernel
 * counts and remembers stays.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { change, listed, REMOVAL, replacement, trial, type FirewallRules } from '../rules.ts'
import { hopListing, TABLE } from '../base-rules.ts'

/** What guests' packets change by themselves. */
const DYNAMIC = /^\tset opened \{\n.*?^\t\}\n/gms

/** What is in a set or a map. */
const ELEMENTS = /elements = \{([^}]*)\}/g

/** Where nft sees an error in what it reads: useless without the text. */
const PLACE = /\/dev\/stdin:[0-9:-]+ /g

/** Rules that come out different each time are put there no more often than so. */
const MOST_TRIES = 5

/** A transaction that nft, or the kernel, does not accept: it has changed nothing. */
export class Refusal extends Error {}

/**
 * The table as this process has put it there. What somebody changes between a transaction and our look at it must not pass for ours: a
 * replacement counts once two of them came out the same, a change once all but elements and the chains of further hop limits is as it was.
 */
export class Table {
  #rules: FirewallRules | undefined
  #listing = ''

  /** Makes the table that of these rules. Rejects with nft's own words: with a Refusal, nothing is changed. */
  async apply(rules: FirewallRules): Promise<void> {
    const before = this.#rules
    this.#rules = undefined
    const isChange = before?.baseRules === rules.baseRules && before.limitedDscp === rules.limitedDscp
    const outcome = isChange ? await this.#change(before, rules) : 'refused'
    if (outcome !== 'done') await this.#replace(rules, outcome === 'refused' ? before : undefined)
    this.#rules = rules
  }

  /** `before`: what the table is made from when nft refuses the first transaction. */
  async #replace(rules: FirewallRules, before: FirewallRules | undefined): Promise<void> {
    let last = ''
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      try {
        await transact(replacement(rules))
      } catch (error) {
        if (tries === 0 && error instanceof Refusal) this.#rules = before
        throw error
      }
      this.#listing = await list()
      if (last !== '' && sorted(this.#listing) === sorted(last)) return
      last = this.#listing
    }
    throw new Error('somebody changes the rules as often as they are put there')
  }

  /** `disturbed`: somebody else changed the table meanwhile, so it does not hold what these rules say. */
  async #change(before: FirewallRules, after: FirewallRules): Promise<'done' | 'refused' | 'disturbed'> {
    const statements = change(before, after)
    if (statements === '') return 'done'
    try {
      await transact(statements)
    } catch (error) {
      if (error instanceof Refusal) return 'refused'
      throw error
    }
    const [was, is] = [this.#listing, await list()]
    this.#listing = is
    const added = after.hops.difference(before.hops)
    const frame = (listing: string) => frameOf(listing, added, after.limitedDscp)
    return elementsOf(is).join() === listed(after).join() && frame(is) === frame(was) ? 'done' : 'disturbed'
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

/** nft's own words where it, or the kernel, would not accept these rules; undefined where they would. Changes nothing. */
export async function refusalOf(rules: FirewallRules): Promise<string | undefined> {
  try {
    await transact(trial(rules))
    return undefined
  } catch (error) {
    if (error instanceof Refusal) return error.message.replaceAll(PLACE, '')
    throw error
  }
}

/** Takes the table away, whether it is there or not. */
export async function removeTable(): Promise<void> {
  await transact(REMOVAL)
}

async function transact(text: string): Promise<void> {
  const { status, stderr } = await nft(['-f', '-'], text)
  if (status === null) throw new Error('nft was ended by a signal')
  if (status !== 0) throw new Refusal(`nft: ${stderr.trim().split('\n', 3).join(' ')}`)
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
