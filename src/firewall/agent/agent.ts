/**
 * imdsctl firewall: keeps the host's rules equal to the daemon's view.
 *
 * A loop: ask the daemon for the view, apply it, and tell with the next question what is applied. An interface that nft refuses is left out
 * and reported. Where anything else fails the rules that are there stay: a guest that has been let in goes on, and one that has not
 * stays out. They stay when this ends, too.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { formatRefusals, type FirewallRefusal } from '../refusal.ts'
import { buildRules, replacement, type FirewallFault } from '../rules.ts'
import { parseFirewallDocument, type FirewallDocument } from '../document.ts'
import { EXIT, Failure } from '../../runtime/failure.ts'
import { Refusal, removeTable, Table } from './nft.ts'
import { findRefused } from './refused.ts'

/** What `imdsctl firewall` is told. */
export interface FirewallOptions {
  readonly apply?: boolean
  readonly watch?: boolean
  readonly remove?: boolean
  /** Where the daemon is asked. */
  readonly operator: string
}

/** The daemon holds a question for 5 s. */
const PATIENCE_MS = 15_000
const RETRY_MS = 1_000
/** An interface that nft refuses is tried again after so long. */
const RETRY_REFUSED_MS = 10_000
/** The table is looked at again so often at most. */
const CHECK_MS = 4_000

/** Prints the rules, applies them once, keeps them, or takes them away. */
export async function firewall(json: boolean, { apply = false, watch = false, remove = false, operator }: FirewallOptions): Promise<void> {
  if ((watch && !apply) || (remove && apply)) throw new Failure(EXIT.usage, 'either --remove, or --apply with or without --watch')
  if (remove) {
    await refusedByNft(removeTable())
    console.log(json ? JSON.stringify({ removed: true }) : 'the rules are removed')
    return
  }
  if (watch) {
    await keep(operator)
    return
  }
  const view = await ask(operator, {}, AbortSignal.timeout(PATIENCE_MS))
  const rules = buildRules(view, apply ? await refusedByNft(applyAccepted(new Table(), view, [])) : [])
  const { interfaces, faults } = rules
  if (json) console.log(JSON.stringify({ version: view.version, interfaces, faults, ...apply ? {} : { rules: replacement(rules) } }))
  else console.log(apply ? `applied: ${String(interfaces)} interfaces are let in` : replacement(rules))
  if (faults.length > 0) throw new Failure(EXIT.badData, faults.map(written).join('\n'), { faults })
}

/** Applies the rules of a view, without the interfaces that nft refuses; gives those. `before`: those of the last time. */
async function applyAccepted(table: Table, view: FirewallDocument, before: readonly FirewallRefusal[]): Promise<readonly FirewallRefusal[]> {
  try {
    await table.apply(buildRules(view, []))
    return []
  } catch (error) {
    const refused = error instanceof Refusal ? await findRefused(view, before) : undefined
    if (refused === undefined) throw error
    await table.apply(buildRules(view, refused))
    return refused
  }
}

async function keep(operator: string): Promise<void> {
  const stopping = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => { stopping.abort() })
  const { signal } = stopping
  const isStopped = () => signal.aborted
  const table = new Table()
  const told = new RecordHealth()
  let view: FirewallDocument | undefined
  let applied = ''
  let checkedAtMs = 0
  let refused: readonly FirewallRefusal[] = []
  let retryAtMs = 0
  let isReady = false
  while (!isStopped()) {
    let failure: string | undefined
    try {
      view = await ask(operator, { after: applied, applied, refused: formatRefusals(refused) }, AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]))
    } catch (error) {
      failure = (error as Error).message
    }
    try {
      if (view !== undefined && (view.version !== applied || (refused.length > 0 && performance.now() >= retryAtMs))) {
        applied = ''
        refused = await applyAccepted(table, view, refused)
        retryAtMs = performance.now() + RETRY_REFUSED_MS
        applied = view.version
        const rules = buildRules(view, refused)
        told.faults(rules.faults)
        if (!isReady) console.log(`imdsctl: the rules are applied: ${String(rules.interfaces)} interfaces are let in`)
        isReady = true
      } else if (performance.now() - checkedAtMs >= CHECK_MS) {
        checkedAtMs = performance.now()
        if (await table.restore()) console.error('imdsctl: somebody changed the rules: they are put back')
      }
    } catch (error) {
      applied = ''
      failure = (error as Error).message
    }
    if (isStopped()) return
    told.failure(failure)
    if (failure !== undefined) await sleep(RETRY_MS, undefined, { signal }).catch(() => { /* stopped */ })
  }
}

/** Says what is new, once. */
class RecordHealth {
  #failure: string | undefined
  #faults: ReadonlySet<string> = new Set()

  failure(failure: string | undefined): void {
    if (failure !== undefined && failure !== this.#failure) console.error(`imdsctl: ${failure}: the rules stay as they are, trying again`)
    if (failure === undefined && this.#failure !== undefined) console.log('imdsctl: the rules follow the daemon again')
    this.#failure = failure
  }

  faults(faults: readonly FirewallFault[]): void {
    const now = new Set(faults.map(written))
    for (const fault of now) if (!this.#faults.has(fault)) console.error(`imdsctl: left out: ${fault}`)
    this.#faults = now
  }
}

function written({ instance, message }: FirewallFault): string {
  return instance === null ? message : `${instance}: ${message}`
}

/** The daemon's view. Rejects when it has none yet. */
async function ask(operator: string, query: Readonly<Record<string, string>>, signal: AbortSignal): Promise<FirewallDocument> {
  const url = new URL('/firewall', `http://${operator}`)
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value)
  let status: number
  let body: unknown
  try {
    const response = await fetch(url, { signal })
    status = response.status
    body = await response.json()
  } catch (error) {
    throw new Failure(EXIT.unavailable, `the daemon cannot be asked at ${operator}: ${String((error as { cause?: Error }).cause?.message ?? error)}`)
  }
  if (status !== 200) throw new Failure(EXIT.unavailable, status === 503 ? 'the daemon has no view to give yet' : `the daemon said ${String(status)}`)
  const view = parseFirewallDocument(body)
  if (view === undefined) throw new Failure(EXIT.unavailable, 'the daemon gives a view that this version of imdsctl cannot read')
  return view
}

async function refusedByNft<T>(work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    throw new Failure(EXIT.system, (error as NodeJS.ErrnoException).code === 'ENOENT' ? 'the program nft is missing: Debian has it in the package nftables' : (error as Error).message)
  }
}
