/**
 * The firewall agent (imdsctl firewall): keeps the rules of this hypervisor in step with the daemon's view.
 *
 * It runs a loop: ask the daemon for the firewall document, apply it, and report with the next request which version is
 * applied. It leaves out an interface that nft refuses, and reports it. If anything else fails, the rules stay as they
 * are: a guest that was admitted stays admitted, and others stay out. The rules also stay when the agent ends.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { getFirewallDocument, valueOf } from '../../imdsd/operator/client.ts'
import { parseUnixSocket } from '../../runtime/host-port.ts'
import { findDistrust } from '../../runtime/trusted-path.ts'
import type { Packets } from '../../imdsd/firewall/counters.ts'
import type { AgentReport, FirewallRefusal } from '../../imdsd/firewall/agent-report.ts'
import { buildRules, replacement, type FirewallFault } from '../../imdsd/firewall/rules.ts'
import type { FirewallDocument } from '../../imdsd/firewall/document.ts'
import { EXIT } from '../../runtime/exit-status.ts'
import { isJournal } from '../../runtime/log-output.ts'
import { stopSignal } from '../../runtime/signals.ts'
import type { Output } from '../../runtime/output.ts'
import { NftRefusal, removeTable, Table } from './nft.ts'
import { findContradiction, type OwnSettings } from './own-settings.ts'
import { findRefused } from './refused.ts'

/** The options of `imdsctl firewall`. */
export interface FirewallOptions {
  readonly apply?: boolean
  readonly watch?: boolean
  readonly remove?: boolean
  /** The daemon's unix socket for operators: `unix:/run/imds/operator.sock`. */
  readonly operator: string
  /** Rules for a document that contradicts it are not applied. */
  readonly own: OwnSettings
  /**
   * The variable JOURNAL_STREAM: if the journal reads the output, lines that are no warnings say so
   * (systemd/imds-firewall.service).
   */
  readonly journalStream: string | undefined
}

/** The daemon answers a request within 5 s. */
const TIMEOUT_MS = 15_000
const RETRY_MS = 1_000
/** After this time, an interface that nft refused is tried again. */
const RETRY_REFUSED_MS = 10_000
/** The least time between two checks of the table in the kernel, and between two looks at its counters. */
const CHECK_MS = 4_000

/** A result. A failure has an exit status for imdsctl, a message, and fields that `--json` adds. */
type Outcome<T> = { readonly ok: true; readonly value: T } | Failed
interface Failed {
  readonly ok: false
  readonly status: number
  readonly message: string
  readonly details?: Readonly<Record<string, unknown>>
}
const DONE = { ok: true, value: undefined } as const
const failed = (status: number, message: string): Failed => ({ ok: false, status, message })

/** Prints the rules, applies them once, keeps them applied, or removes them. */
export async function firewall(
  output: Output,
  { apply = false, watch = false, remove = false, operator, own, journalStream }: FirewallOptions,
): Promise<Outcome<undefined>> {
  if ((watch && !apply) || (remove && apply))
    return failed(EXIT.usage, 'use either --remove, or --apply with or without --watch')
  if (remove) {
    const removed = await outcomeOfNft(removeTable())
    if (removed.ok) output.result({ removed: true }, 'the rules are removed')
    return removed.ok ? DONE : removed
  }
  if (watch) {
    await keep(operator, own, isJournal(journalStream, process.stdout.fd) ? '<6>' : '')
    return DONE
  }
  const asked = await ask(operator, apply ? own : undefined, undefined, AbortSignal.timeout(TIMEOUT_MS))
  if (!asked.ok) return asked
  const document = asked.value
  const refused = apply
    ? await outcomeOfNft(applyAccepted(new Table(), document, []))
    : { ok: true as const, value: [] }
  if (!refused.ok) return refused
  const rules = buildRules(document, refused.value)
  const { interfaces } = rules
  const faults = rules.faults.map(({ instance, message }) => ({ instance: instance ?? null, message })) // as JSON
  const text = replacement(rules)
  output.result(
    { version: document.version, interfaces, faults, ...(!apply && { rules: text }) },
    apply ? `applied: ${String(interfaces)} interfaces are admitted` : text,
  )
  return faults.length === 0
    ? DONE
    : { ...failed(EXIT.badData, rules.faults.map(formatFault).join('\n')), details: { faults } }
}

/**
 * Applies the rules of a view without the interfaces that nft refuses, and returns these. `before`: the interfaces that
 * nft refused the last time.
 */
async function applyAccepted(
  table: Table,
  document: FirewallDocument,
  before: readonly FirewallRefusal[],
): Promise<readonly FirewallRefusal[]> {
  try {
    await table.apply(buildRules(document, []))
    return []
  } catch (error) {
    const refused = error instanceof NftRefusal ? await findRefused(document, before) : undefined
    if (refused === undefined) throw error
    await table.apply(buildRules(document, refused))
    return refused
  }
}

/** `info`: the prefix of a line that is no warning. */
async function keep(operator: string, own: OwnSettings, info: string): Promise<void> {
  const signal = stopSignal()
  const isStopped = () => signal.aborted
  const table = new Table()
  const reporter = new Reporter(info)
  let document: FirewallDocument | undefined
  let applied: string | undefined
  let checkedAtMs = 0
  let refused: readonly FirewallRefusal[] = []
  let retryAtMs = 0
  let isReady = false
  let packets: Packets | undefined
  let countedAtMs = -Infinity
  while (!isStopped()) {
    const timeout = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)])
    const asked = await ask(operator, own, { applied, refused, packets }, timeout).catch((error: unknown) =>
      failed(EXIT.unavailable, (error as Error).message),
    )
    if (asked.ok) document = asked.value
    let failure = asked.ok ? undefined : asked.message
    try {
      if (
        document !== undefined &&
        (document.version !== applied || (refused.length > 0 && performance.now() >= retryAtMs))
      ) {
        applied = undefined
        refused = await applyAccepted(table, document, refused)
        retryAtMs = performance.now() + RETRY_REFUSED_MS
        applied = document.version
        const rules = buildRules(document, refused)
        reporter.faults(rules.faults)
        if (!isReady)
          console.log(`${info}imdsctl: the rules are applied: ${String(rules.interfaces)} interfaces are admitted`)
        isReady = true
      } else if (performance.now() - checkedAtMs >= CHECK_MS) {
        checkedAtMs = performance.now()
        if (await table.restore()) console.error('imdsctl: another program changed the rules; they are restored')
      }
      if (applied !== undefined && performance.now() - countedAtMs >= CHECK_MS) {
        countedAtMs = performance.now()
        packets = await table.packets()
      }
    } catch (error) {
      applied = undefined
      failure = (error as Error).message
    }
    if (isStopped()) return
    reporter.failure(failure)
    if (failure !== undefined)
      await sleep(RETRY_MS, undefined, { signal }).catch(() => {
        /* stopped */
      })
  }
}

/** Prints each failure and fault once, when it begins. */
class Reporter {
  readonly #info: string
  #failure: string | undefined
  #faults: ReadonlySet<string> = new Set()

  constructor(info: string) {
    this.#info = info
  }

  failure(failure: string | undefined): void {
    if (failure !== undefined && failure !== this.#failure)
      console.error(`imdsctl: ${failure}: the rules stay as they are, trying again`)
    if (failure === undefined && this.#failure !== undefined)
      console.log(`${this.#info}imdsctl: the rules follow the daemon again`)
    this.#failure = failure
  }

  faults(faults: readonly FirewallFault[]): void {
    const now = new Set(faults.map(formatFault))
    for (const fault of now) if (!this.#faults.has(fault)) console.error(`imdsctl: left out: ${fault}`)
    this.#faults = now
  }
}

function formatFault({ instance, message }: FirewallFault): string {
  return instance === undefined ? message : `${instance}: ${message}`
}

/**
 * The daemon's document. Fails if the daemon has none yet, if another user than root and the daemon's could have made
 * the socket (an ordinary user could pretend to be the daemon), and if the document contradicts `own`.
 */
async function ask(
  operator: string,
  own: OwnSettings | undefined,
  report: AgentReport | undefined,
  signal: AbortSignal,
): Promise<Outcome<FirewallDocument>> {
  const socket = parseUnixSocket(operator)
  if (socket === undefined)
    return failed(
      EXIT.usage,
      `the firewall's document is on the daemon's unix socket only: --operator unix:PATH, not ${operator}`,
    )
  const distrust = findDistrust(socket.path, process.getuid?.() ?? 0)
  if (distrust !== undefined) return failed(EXIT.unavailable, `the daemon at ${operator} is not trusted: ${distrust}`)
  const answer = await getFirewallDocument(operator, report, signal)
  if (answer.kind === 'refused' && answer.status === 503)
    return failed(EXIT.unavailable, 'the daemon has no complete view yet')
  const read = valueOf(answer, operator)
  if (!read.ok) return failed(EXIT.unavailable, read.faults.join())
  const contradiction = own && findContradiction(read.value, own)
  return contradiction === undefined ? read : failed(EXIT.badData, contradiction)
}

async function outcomeOfNft<T>(work: Promise<T>): Promise<Outcome<T>> {
  try {
    return { ok: true, value: await work }
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    return failed(
      EXIT.system,
      code === 'ENOENT' ? 'the program nft is missing: Debian has it in the package nftables' : message,
    )
  }
}
