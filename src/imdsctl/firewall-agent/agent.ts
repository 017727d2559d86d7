/**
 * The firewall agent (imdsctl firewall): keeps the rules of this hypervisor in step with the daemon's view.
 *
 * It runs a loop: ask the daemon for the firewall document, apply it as a whole, look whether the kernel has it, and
 * report with the next request which version that is. If nft refuses the rules, the old ones stay, and the report says
 * why: a guest that was admitted stays admitted, and others stay out. The rules also stay when the agent ends.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ask, QUESTIONS, parsedAnswer } from '../../imdsd/operator/client.ts'
import { parseUnixSocket } from '../../runtime/host-port.ts'
import { findDistrust } from '../../runtime/trusted-path.ts'
import type { AgentReport } from '../../imdsd/firewall/agent-report.ts'
import { buildRules, replacement, type FirewallFault, type FirewallRules } from '../../imdsd/firewall/rules.ts'
import type { FirewallDocument } from '../../imdsd/firewall/document.ts'
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import type { LogCode } from '../../runtime/log-codes.ts'
import { isJournal } from '../../runtime/log-output.ts'
import { stopSignal } from '../../runtime/signals.ts'
import type { Output } from '../../runtime/output.ts'
import { acceptMarks } from './accepted-mark.ts'
import { removeTable, Table } from './nft.ts'
import { findContradiction, type OwnSettings } from './own-settings.ts'

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

/** The daemon answers a request within 3 s. */
const TIMEOUT_MS = 15_000
const RETRY_MS = 1_000
/** The table in the kernel is checked at this interval while the daemon does not answer. */
const CHECK_MS = 4_000

/** Prints the rules, applies them once, keeps them applied, or removes them. */
export async function firewall(
  output: Output,
  { apply = false, watch = false, remove = false, operator, own, journalStream }: FirewallOptions,
): Promise<void> {
  if ((watch && !apply) || (remove && apply))
    throw new CommandFailure(EXIT.usage, 'use either --remove, or --apply with or without --watch')
  if (remove) {
    await removeTable().catch(failOfNft)
    output.result({ removed: true }, 'the rules are removed')
    return
  }
  if (watch) {
    await keep(operator, own, isJournal(journalStream, process.stdout.fd) ? '<6>' : '')
    return
  }
  const document = await getDocument(operator, apply ? own : undefined, undefined, AbortSignal.timeout(TIMEOUT_MS))
  const rules = buildRules(document)
  const { interfaces } = rules
  if (apply) await applyOnce(rules).catch(failOfNft)
  const faults = rules.faults.map(({ instance, message }) => ({ instance: instance ?? null, message })) // as JSON
  const text = replacement(rules)
  output.result(
    { version: document.version, interfaces, faults, ...(!apply && { rules: text }) },
    apply ? `applied: ${interfaces} interfaces are admitted` : text,
  )
  if (faults.length > 0) throw new CommandFailure(EXIT.badData, rules.faults.map(formatFault).join('\n'), { faults })
}

async function applyOnce(rules: FirewallRules): Promise<void> {
  acceptMarks()
  await new Table().apply(rules)
}

/** `info`: the prefix of a line that is no warning. */
async function keep(operator: string, own: OwnSettings, info: string): Promise<void> {
  const signal = stopSignal()
  const isStopped = () => signal.aborted
  const table = new Table()
  const reporter = buildReporter(info)
  let report: AgentReport = { applied: undefined, failed: undefined, packets: undefined }
  let isReady = false
  /** Applies the rules of another document. False if there are none to apply. */
  const follow = async (document: FirewallDocument | undefined) => {
    if (document === undefined || document.version === table.version) return false
    acceptMarks()
    const rules = buildRules(document)
    await table.apply(rules)
    reporter.faults(rules.faults)
    if (!isReady) console.log(`${info}imdsctl: the rules are applied: ${rules.interfaces} interfaces are admitted`)
    isReady = true
    return true
  }
  /** True if the kernel has the last rules. If another program has changed them, restores them and returns false. */
  const check = async () => {
    if (table.version === undefined) return false
    const wasOff = acceptMarks()
    if (!wasOff && (await table.isWhole())) return true
    await table.restore()
    warn('firewall-restored', 'another program changed the rules; they are restored')
    return false
  }
  while (!isStopped()) {
    const timeout = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)])
    const answer = resultOf(getDocument(operator, own, report, timeout))
    while ((await Promise.race([answer, sleep(CHECK_MS, undefined, { ref: false })])) === undefined)
      await resultOf(check())
    const { value: document, failure } = await answer
    const followed = await resultOf(follow(document))
    const checked = followed.value === true ? followed : await resultOf(check())
    const failed = followed.failure ?? checked.failure
    report = { applied: checked.value === true ? table.version : undefined, failed, packets: table.packets() }
    if (isStopped()) return
    reporter.failure(failure ?? failed)
    if ((failure ?? failed) !== undefined) await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined) // stopped
  }
}

interface Result<T> {
  readonly value: T | undefined
  readonly failure: string | undefined
}

/** What a promise is resolved with, or the message that it is rejected with. */
async function resultOf<T>(promise: Promise<T>): Promise<Result<T>> {
  try {
    return { value: await promise, failure: undefined }
  } catch (error) {
    return { value: undefined, failure: (error as Error).message }
  }
}

function warn(code: LogCode, message: string): void {
  console.error(`imdsctl: ${message} (${code})`)
}

/** Prints each failure and fault once, when it begins. `info`: as in `keep`. */
function buildReporter(info: string) {
  let lastFailure: string | undefined
  let lastFaults: ReadonlySet<string> = new Set()
  return {
    failure: (failure: string | undefined) => {
      if (failure !== undefined && failure !== lastFailure)
        warn('firewall-not-applied', `${failure}: the rules stay as they are, trying again`)
      if (failure === undefined && lastFailure !== undefined)
        console.log(`${info}imdsctl: the rules follow the daemon again`)
      lastFailure = failure
    },
    faults: (faults: readonly FirewallFault[]) => {
      const now = new Set(faults.map(formatFault))
      for (const fault of now.difference(lastFaults)) warn('interface-left-out', `left out: ${fault}`)
      lastFaults = now
    },
  }
}

function formatFault({ instance, message }: FirewallFault): string {
  return instance === undefined ? message : `${instance}: ${message}`
}

/**
 * The daemon's document. Throws a Failure if the daemon has none yet, if another user than root and the daemon's could have made
 * the socket (an ordinary user could pretend to be the daemon), and if the document contradicts `own`.
 */
async function getDocument(
  operator: string,
  own: OwnSettings | undefined,
  report: AgentReport | undefined,
  signal: AbortSignal,
): Promise<FirewallDocument> {
  const socket = parseUnixSocket(operator)
  if (socket === undefined)
    throw new CommandFailure(
      EXIT.usage,
      `the firewall's document is on the daemon's unix socket only: --operator unix:PATH, not ${operator}`,
    )
  const distrust = findDistrust(socket.path, process.getuid?.() ?? 0)
  if (distrust !== undefined)
    throw new CommandFailure(EXIT.unavailable, `the daemon at ${operator} is not trusted: ${distrust}`)
  const answer = await ask(operator, QUESTIONS.firewall(report), signal)
  if (answer.kind === 'refused' && answer.status === 503)
    throw new CommandFailure(EXIT.unavailable, 'the daemon has no complete view yet')
  const read = parsedAnswer(answer, operator)
  if (!read.ok) throw new CommandFailure(EXIT.unavailable, read.faults.join())
  const contradiction = own && findContradiction(read.value, own)
  if (contradiction !== undefined) throw new CommandFailure(EXIT.badData, contradiction)
  return read.value
}

function failOfNft(error: unknown): never {
  const { code, message } = error as NodeJS.ErrnoException
  throw new CommandFailure(
    EXIT.system,
    code === 'ENOENT' ? 'the program nft is missing: Debian has it in the package nftables' : message,
  )
}
