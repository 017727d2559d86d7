/**
 * `imdsctl explain`: what the guest at an address, or of an instance, would get from a daemon and why, the path of packets
 * to it, and what it has asked for; or what a code means.
 *
 * The daemon knows all but the path, which this process looks at itself.
 */
import { ID_RULE, isId, isName } from '../metadata/identifiers.ts'
import { canonicalAddress } from '../metadata/address.ts'
import { QUESTIONS } from '../imdsd/operator/client.ts'
import type { AskedFor, Explanation } from '../imdsd/operator/documents.ts'
import { formatFinding, STYLES, warning } from '../runtime/check.ts'
import { findPaths, NOT_LOOKED_AT, type Step } from './doctor/guest-path.ts'
import type { DoctorSources } from './doctor/hypervisor.ts'
import { formatAgo } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import type { Cell } from '../runtime/terminal.ts'
import { askDaemon } from './ask-daemon.ts'
import { explainCode, suggestCode } from './explain-code.ts'

/** What the command needs. */
interface ExplainContext extends DoctorSources {
  readonly operator: string
  readonly output: Output
}

/** Explains a code, an address on a network, or each address of an instance. */
export async function explain(context: ExplainContext, target: string, network: string): Promise<void> {
  const { output, operator } = context
  if (explainCode(output, target)) return
  const isAddress = canonicalAddress(target) !== undefined
  if (!isAddress && !isId(target))
    throw new CommandFailure(EXIT.usage, `"${String(target)}" is neither an address nor ${ID_RULE}`)
  if (!isName(network)) throw new CommandFailure(EXIT.usage, `"${network}" is not the name of a network`)
  const { explanations, more } = isAddress
    ? { explanations: [await askDaemon(operator, QUESTIONS.address(network, target))], more: 0 }
    : await explainInstance(operator, target).catch((error: unknown) => {
        if (!(error instanceof CommandFailure)) throw error
        throw new CommandFailure(error.status, `${error.message} ${suggestCode(target)}`.trimEnd(), error.details)
      })
  const id = explanations.find(({ instance }) => instance !== undefined)?.instance?.id
  const steps = id === undefined ? [] : await stepsTo(context, id)
  for (const explanation of explanations) {
    const path = steps.filter(({ address = explanation.address }) => address === explanation.address)
    if (output.json)
      output.printJson({
        ...explanation,
        ...(id !== undefined && { path: path.map(({ name, finding }) => ({ step: name, ...finding })) }),
      })
    else {
      const { title, rows } = formatExplanation(explanation, path, Date.now())
      output.rows([[title]])
      output.rows(rows)
    }
  }
  if (more > 0) output.warn(`${target} has ${more} more addresses: explain one of them by itself`)
}

async function explainInstance(
  operator: string,
  id: string,
): Promise<{ readonly explanations: readonly Explanation[]; readonly more: number }> {
  const { revision, reason, addresses, more } = await askDaemon(operator, QUESTIONS.addresses(id))
  if (revision === undefined) {
    const why = reason === undefined ? '' : `: ${reason}`
    throw new CommandFailure(EXIT.notFound, `the daemon at ${operator} does not serve ${id}${why}`, { id })
  }
  if (addresses.length === 0) {
    const message = `the record of ${id} has no address: explain one of its prefixes, if it has any`
    throw new CommandFailure(EXIT.notFound, message, { id })
  }
  return { explanations: addresses, more }
}

/** The steps of the paths to an instance. */
async function stepsTo(context: ExplainContext, id: string): Promise<readonly Step[]> {
  const unknown = (reason: string): Step[] => [
    { name: 'link', address: undefined, finding: warning(`not checked: ${reason}`, 'imdsctl doctor says more') },
  ]
  const look = (await import('./doctor/hypervisor.ts')).lookAtHypervisor(context)
  if (!look.ok) return unknown(look.faults.join())
  const document = await look.value.firewall()
  if (!document.ok) return unknown(document.faults.join())
  const guests = document.value.guests.filter((guest) => guest.id === id)
  const paths = await findPaths(look.value, document.value, guests)
  return paths === undefined
    ? [{ name: 'link', address: undefined, finding: NOT_LOOKED_AT }]
    : paths.flatMap(({ steps }) => steps)
}

/** An explanation: its title, and what is known besides as rows. */
export function formatExplanation(
  { network, address, answer, status, because, ...explanation }: Explanation,
  path: readonly Step[],
  nowMs: number,
): { readonly title: Cell; readonly rows: (readonly Cell[])[] } {
  const { instance, sessionTokens, userData, hopLimit, firewall, packets, listener, store, requests } = explanation
  const code = status === undefined ? '' : ` (${status})`
  const problem = (text: string | undefined) => text && { text, style: STYLES.failure }
  const facts: readonly (readonly [string, Cell | undefined])[] = [
    ['instance', instance && `${instance.id}, revision ${instance.revision}, on ${instance.hypervisors.join(', ')}`],
    ['session tokens', sessionTokens],
    ['user-data', userData],
    ['hop limit', hopLimit && `${hopLimit.limit}, ${hopLimit.enforced ? '' : 'not '}enforced by the firewall`],
    ...path.map(stepRow),
    ['packets', packets && formatPackets(packets)],
    ['firewall', problem(firewall)],
    ['listener', problem(listener)],
    ['store', problem(store)],
    ...(requests ?? []).map((request) => ['request', formatRequest(request, nowMs)] as const),
    ['request', requests?.length === 0 ? 'none since the daemon started, or since it came here' : undefined],
  ]
  return {
    title: {
      text: `${address} on network ${network}: ${answer}${code}, since ${because}`,
      style: answer === 'metadata' ? STYLES.ok : STYLES.failure,
    },
    rows: facts.flatMap(([name, cell]) => (cell === undefined ? [] : [[name, cell]])),
  }
}

function stepRow({ name, finding }: Step): readonly [string, Cell] {
  const text = formatFinding(finding)
  return [name, finding.severity === 'ok' ? text : { text, style: STYLES[finding.severity] }]
}

/** `user-data, 3 s ago: 403 forwarded; 2 in all; "Cloud-Init/25.1"`. The output escapes control characters. */
function formatRequest({ topic, at, status, reason, userAgent, count }: AskedFor, nowMs: number): string {
  const agent = userAgent === undefined ? '' : `; ${JSON.stringify(userAgent)}`
  return `${topic}, ${formatAgo(at, nowMs)}: ${status} ${reason}; ${count} in all${agent}`
}

/** `admitted 120; dropped: unknown-peers 3, strays 1 (all guests of the hypervisor)`. */
function formatPackets({ admitted = 0, ...dropped }: Readonly<Record<string, number>>): string {
  const drops = Object.entries(dropped).filter(([, count]) => count > 0)
  const text = drops.length === 0 ? 'none' : drops.map(([reason, count]) => `${reason} ${count}`).join(', ')
  return `admitted ${admitted}; dropped ${text} (all guests of the hypervisor)`
}
